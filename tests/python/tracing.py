"""Functions as imported graphs: traced to ATen, imported, and run by torch_builder or by the compiled core."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from mlcc import config
from mlcc._load import load_core
from mlcc.capture.compiled_graph import caller
from mlcc.capture.session import op_table
from mlcc.importer import fx_graph
from mlcc.ir import types as ir_types
from mlcc.ir.op_table import OpTable
from mlcc.rewrite import decompositions
from mlcc.torch_private import aot
from mlcc.training import recompute
from tests.python.torch_builder import TorchBuilder, read_pointwise_rows

ROWS = read_pointwise_rows()
TABLE = OpTable((op, arity, rule, domain, aten) for op, arity, rule, domain, _, aten in ROWS)
GENERATED = frozenset(TABLE.overloads())


class Imported:
    """A traced function in a TorchBuilder."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        self.builder = TorchBuilder()
        self.graph = fx_graph.import_graph(gm, self.builder, TABLE)

    def __call__(self, *inputs: Any) -> list[Any]:
        values = self.builder.run([*inputs, *self.graph.constants])
        return [values[o.index] if o.kind == "value" else o.constant for o in self.graph.outputs]

    @property
    def externs(self) -> set[str]:
        return {name for name, _ in self.builder.externs}


class Compiled:
    """A traced function in the compiled core."""

    def __init__(self, gm: torch.fx.GraphModule) -> None:
        core = load_core()
        builder = core.GraphBuilder("traced")
        self.graph = fx_graph.import_graph(gm, builder, op_table())
        self.executable = core.compile(builder, config.resolve())
        self._call = caller(self.executable, self.graph)

    def __call__(self, *inputs: Any) -> list[Any]:
        return self._call(list(inputs))

    @property
    def externs(self) -> set[str]:
        return set(self.graph.externs)


def trace(function: Any, *args: Any, dynamic: bool = False, make: Any = Imported) -> Any:
    """`function` as an ATen graph with our decompositions, as an Imported or a Compiled. Its inputs are tensors."""

    def flat(*inputs: Any) -> Any:
        result = function(*inputs)
        return list(result) if isinstance(result, list | tuple) else [result]

    mode = "symbolic" if dynamic else "fake"
    table = decompositions.table(GENERATED)
    gm = make_fx(flat, decomposition_table=table, tracing_mode=mode, _allow_non_fake_inputs=True)(
        *args
    )
    gm.graph.eliminate_dead_code()
    return make(gm)


def through_aot(function: Any, graphs: list[Imported]) -> Any:
    """`function` compiled by a backend that imports each graph, appends it to `graphs`, and runs what was imported."""

    def compiler(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        imported = Imported(gm)
        graphs.append(imported)

        def run(inputs: list[Any]) -> Any:
            taken = list(inputs)
            inputs.clear()
            return imported(*taken)

        run._boxed_call = True  # type: ignore[attr-defined]
        return run

    def backend(gm: torch.fx.GraphModule, example_inputs: Any) -> Any:
        return aot.compile_with_aot(
            gm,
            example_inputs,
            forward=compiler,
            backward=compiler,
            inference=compiler,
            partition=recompute.partition(
                GENERATED, {"contractions": False, "fallback_random": False}
            ),
            decompositions=decompositions.table(GENERATED, has_gradients=True),
            cache_key=None,
        )

    torch._dynamo.reset()
    return torch.compile(function, backend=backend)


def run_through_aot(function: Any, *args: Any) -> tuple[list[Imported], Any]:
    """The imported graphs and the result of one call."""
    graphs: list[Imported] = []
    result = through_aot(function, graphs)(*args)
    return graphs, result


# -- calls of the table's overloads

DTYPES = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.uint8,
    torch.bool,
]
# "aten.gelu.default[tanh]": an overload, and the form of it that a row stands for.
FORMS = sorted({form for row in ROWS for form in row[5].split()})


def _overload(form: str) -> Any:
    packet, overload = form.split("[")[0].removeprefix("aten.").rsplit(".", 1)
    return getattr(getattr(torch.ops.aten, packet), overload)


def _random(dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        x = torch.randn(3, 41, generator=generator, dtype=torch.float64) * 2
        return x.to(dtype)
    if dtype == torch.bool:
        return torch.randint(0, 2, (3, 41), generator=generator, dtype=torch.bool)
    low = 1 if seed else (0 if dtype == torch.uint8 else -9)
    return torch.randint(low, 9, (3, 41), generator=generator).to(dtype)


def call_of(form: str, dtype: torch.dtype) -> tuple[list[torch.Tensor], Any]:
    """(tensor inputs, function of them) that calls the form's overload."""
    op = _overload(form)
    choice = form.split("[")[1].rstrip("]") if "[" in form else ""
    tensors: list[torch.Tensor] = []
    plan: list[Any] = []
    kwargs: dict[str, Any] = {}
    for argument in op._schema.arguments:
        kind = str(argument.type)
        name = argument.name
        if kind == "Tensor" or (kind == "Optional[Tensor]" and choice in ("", name)):
            is_condition = form == "aten.where.self" and not tensors
            tensors.append(_random(torch.bool if is_condition else dtype, len(tensors)))
            plan.append(("tensor", len(tensors) - 1))
        elif kind == "Optional[Tensor]":
            plan.append(None)
        elif name == "alpha" and "elu" not in form:
            kwargs["alpha"] = (
                (3 if not dtype.is_floating_point else 0.3) if choice == "alpha" else 1
            )
        elif name in ("approximate", "rounding_mode"):
            kwargs[name] = choice or argument.default_value
        elif kind == "Optional[number]":
            number = {"min": -0.7, "max": 0.9}.get(name, 0.6)
            plan.append(number if choice in ("", name) else None)
        elif kind in ("number", "float") and argument.kwarg_only:
            kwargs[name] = _number(form, dtype, len(plan))
        elif kind in ("number", "float"):
            plan.append(_number(form, dtype, len(plan)))
        elif kind == "bool":
            plan.append(False)
    return tensors, lambda *t: op(*(t[p[1]] if isinstance(p, tuple) else p for p in plan), **kwargs)


def _number(form: str, dtype: torch.dtype, place: int) -> Any:
    if "hardtanh" in form:
        return (
            [None, -1.0, 1.0, 1.0][place]
            if "backward" not in form
            else [None, None, -0.5, 0.5][place]
        )
    if dtype.is_floating_point:
        return 0.7
    return True if dtype == torch.bool else 3


def is_in_table(form: str, dtype: torch.dtype) -> bool:
    """Whether some row of the form is computed in the dtype or in the one it is promoted to."""
    overload, _, choice = form.partition("[")
    name = ir_types.DTYPES[dtype]
    computed = {"bf16": "f32", "f16": "f32"}.get(name, name)
    return any(computed in row.domain for row in TABLE.rows(overload, choice.rstrip("]")))
