"""A GraphBuilder that computes with torch, op by op as csrc/graph/graph.h defines them.

It judges the importer without the compiler: what `import_graph` makes of an ATen graph is run here and compared with
eager. The formulas of pointwise ops are read from csrc/graph/ops.def.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

OPS_DEF = Path(__file__).resolve().parents[2] / "csrc" / "graph" / "ops.def"

DTYPES = {
    "bool": torch.bool,
    "u8": torch.uint8,
    "i8": torch.int8,
    "i16": torch.int16,
    "i32": torch.int32,
    "i64": torch.int64,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def read_pointwise_rows() -> list[tuple[str, int, str, str, str, str]]:
    """Rows (op, arity, rule, domain, formula, aten) of ops.def."""
    text = re.sub(r"//.*", "", OPS_DEF.read_text())
    macros = {}
    for match in re.finditer(r"#define (\w+)((?:[^\n]*\\\n)*[^\n]*)", text):
        macros[match[1]] = "".join(re.findall(r'"([^"]*)"', match[2]))
    text = re.sub(r"#define (?:[^\n]*\\\n)*[^\n]*|#undef \w+", "", text)
    rows = []
    for match in re.finditer(r"POINTWISE\(((?:\"[^\"]*\"|[^\")])*)\)", text):
        fields = re.split(r",(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", match[1], maxsplit=5)
        _, op, arity, rule, domain, rest = (field.strip() for field in fields)
        formula, aten = re.split(r",(?=(?:[^\"]*\"[^\"]*\")*[^\"]*$)", rest, maxsplit=1)
        rows.append(
            (
                _joined(op, macros),
                int(arity),
                _snake(rule.removeprefix("k")),
                _snake(domain.removeprefix("k")),
                _joined(formula, macros),
                _joined(aten, macros),
            )
        )
    return rows


def _joined(text: str, macros: dict[str, str]) -> str:
    pieces = re.findall(r'"([^"]*)"|(\w+)', text)
    return "".join(macros[name] if name else literal for literal, name in pieces)


# -- formulas


def _tensor(x: Any, like: Any) -> Any:
    return x if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=like.dtype)


def _binary(function: Callable[..., Any]) -> Callable[..., Any]:
    def call(a: Any, b: Any) -> Any:
        like = a if isinstance(a, torch.Tensor) else b
        return function(_tensor(a, like), _tensor(b, like))

    return call


def _select(condition: Any, a: Any, b: Any) -> Any:
    like = next((x for x in (a, b) if isinstance(x, torch.Tensor)), None)
    if like is None:
        like = torch.tensor(a)
    return torch.where(condition, _tensor(a, like), _tensor(b, like))


def _fma(a: Any, b: Any, c: Any) -> Any:
    like = next(x for x in (a, b, c) if isinstance(x, torch.Tensor))
    a, b, c = (_tensor(x, like) for x in (a, b, c))
    if like.dtype == torch.float32:
        return (a.double() * b.double() + c.double()).float()
    return a * b + c


def _div(a: Any, b: Any) -> Any:
    like = a if isinstance(a, torch.Tensor) else b
    return torch.div(_tensor(a, like), _tensor(b, like))


# Functions of scalar_functions.def: torch's names of them, with one operand and with two.
_UNARY = """
    acos acosh asin asinh atan atanh cos cosh erf erfc exp exp2 expm1 log log10 log1p log2 sigmoid sin sinh tan tanh
"""
_BINARY = "atan2 hypot pow"

_FUNCTIONS: dict[str, Any] = {
    **{name: getattr(torch, name) for name in _UNARY.split()},
    **{name: _binary(getattr(torch, name)) for name in _BINARY.split()},
    "abs": torch.abs,
    "ceil": torch.ceil,
    "div": _div,
    "floor": torch.floor,
    "floordiv": lambda a, b: torch.div(a, b, rounding_mode="floor"),
    "fma": _fma,
    "inf": math.inf,
    "isinf": torch.isinf,
    "isnan": torch.isnan,
    "max": _binary(torch.maximum),
    "min": _binary(torch.minimum),
    "mod": _binary(torch.remainder),
    "neg": lambda a: -a,
    "not_": torch.bitwise_not,
    "rem": _binary(torch.fmod),
    "round": torch.round,
    "select": _select,
    "shl": torch.bitwise_left_shift,
    "shr": torch.bitwise_right_shift,
    "signbit": torch.signbit,
    "sqrt": torch.sqrt,
    "trunc": torch.trunc,
    "truncdiv": lambda a, b: torch.div(a, b, rounding_mode="trunc"),
}


def _run_formula(formula: str, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    names = {chr(ord("a") + place): operand for place, operand in enumerate(operands)}
    return eval(formula.replace("not(", "not_("), dict(_FUNCTIONS), names)


# -- the builder


class Value:
    """A value under construction."""

    def __init__(self, number: int, run: Callable[[Run], Any]) -> None:
        self.number = number
        self.run = run
        self.strides: list[Any] | None = None
        self.device = "cpu"
        self.shape: list[Any] = []  # sizes are those of each run: no two of them are told apart
        self.keeps_memory = False  # inputs and what ops of torch return


class Run:
    """One execution: the inputs and the values computed so far."""

    def __init__(self, sizes: dict[str, int], values: dict[int, Any]) -> None:
        self.sizes = sizes
        self.values = values

    def size(self, text: Any) -> int:
        if isinstance(text, int):
            return text
        functions = {
            "floordiv": lambda a, b: a // b,
            "mod": lambda a, b: a % b,
            "min": min,
            "max": max,
        }
        return int(eval(text, dict(functions), self.sizes))

    def shape(self, sizes: Sequence[Any]) -> list[int]:
        return [self.size(size) for size in sizes]

    def __getitem__(self, value: Value) -> Any:
        return self.values[value.number]


class TorchBuilder:
    """Takes the calls that mlcc._C.GraphBuilder takes; `run` executes what was built."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.steps: list[Callable[[Run], None]] = []
        self.inputs: list[tuple[Value | None, list[Any]]] = []
        self.outputs: list[Value] = []
        self.symbols: dict[str, tuple[int | None, int | None, int | None]] = {}
        self.externs: list[tuple[str, dict[str, Any]]] = []
        self.ops: list[str] = []
        self.sources: list[str] = []
        self._number = 0
        self._rows = {row[0]: row for row in read_pointwise_rows()}

    # -- running

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Outputs for tensors and ints; tensors are written into where the graph says so."""
        run = Run({}, {})
        for (value, shape), given in zip(self.inputs, inputs, strict=True):
            actual = list(given.shape) if value is not None else [given]
            for size, number in zip(shape, actual, strict=True):
                if isinstance(size, str) and size.isidentifier():
                    run.sizes[size] = number
            if value is not None:
                run.values[value.number] = given
        for step in self.steps:
            step(run)
        return [run[value] for value in self.outputs]

    def _add(self, name: str, compute: Callable[[Run], Any]) -> Value:
        value = self._new_value()
        self.ops.append(name)

        def step(run: Run) -> None:
            run.values[value.number] = _restrided(compute(run), value, run)

        self.steps.append(step)
        return value

    def _new_value(self) -> Value:
        self._number += 1
        return Value(self._number, lambda run: None)

    # -- inputs and outputs

    def add_symbol(
        self, name: str, low: int | None = None, high: int | None = None, hint: int | None = None
    ) -> None:
        self.symbols[name] = (low, high, hint)

    def add_input(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Any],
        strides: Sequence[Any] | None = None,
        device: str = "cpu",
        static: bool = False,
        range: tuple[int, int] | None = None,
    ) -> Value:
        del static, range  # which change no result
        assert device == "cpu"
        value = self._new_value()
        self.inputs.append((value, list(shape)))
        return value

    def add_size_input(self, name: str, size: Any) -> None:
        self.inputs.append((None, [size]))

    def set_outputs(self, values: Sequence[Value]) -> None:
        self.outputs = list(values)

    def set_strides(self, value: Value, strides: Sequence[Any]) -> None:
        value.strides = list(strides)

    def set_source(self, value: Value, source: str) -> None:
        self.sources.append(source)

    # -- pointwise and index maps

    def pointwise(self, op: str, operands: Sequence[Value]) -> Value:
        _, _, rule, _, formula, _ = self._rows[op]
        operands = list(operands)

        def compute(run: Run) -> torch.Tensor:
            tensors = [run[operand] for operand in operands]
            dtypes = {t.dtype for t in tensors[1:] if op == "where"} or {t.dtype for t in tensors}
            assert len(dtypes) == 1, f"{op}: operands of {dtypes}"
            result = _run_formula(formula, tensors)
            if rule not in ("compare", "logical", "test"):
                result = result.to(tensors[-1].dtype)
            return result.broadcast_to(torch.broadcast_shapes(*(t.shape for t in tensors)))

        return self._add(op, compute)

    def cast(self, value: Value, dtype: str) -> Value:
        return self._add("cast", lambda run: run[value].to(DTYPES[dtype], copy=True))

    def permute(self, value: Value, dims: Sequence[int]) -> Value:
        return self._add("permute", lambda run: run[value].permute(list(dims)))

    def expand(self, value: Value, shape: Sequence[Any]) -> Value:
        return self._add("expand", lambda run: run[value].broadcast_to(run.shape(shape)))

    def reshape(self, value: Value, shape: Sequence[Any]) -> Value:
        return self._add("reshape", lambda run: run[value].contiguous().view(run.shape(shape)))

    def slice(self, value: Value, dim: int, start: Any, length: Any, step: int = 1) -> Value:
        def compute(run: Run) -> torch.Tensor:
            first, count = run.size(start), run.size(length)
            index = torch.arange(first, first + count * step, step) if count else torch.arange(0)
            return run[value].index_select(dim, index)

        return self._add("slice", compute)

    def flip(self, value: Value, dims: Sequence[int]) -> Value:
        return self._add("flip", lambda run: run[value].flip(list(dims)))

    def window(
        self, value: Value, dim: int, count: Any, size: Any, step: int = 1, dilation: int = 1
    ) -> Value:
        def compute(run: Run) -> torch.Tensor:
            windows, length = run.size(count), run.size(size)
            first = torch.arange(windows)[:, None] * step
            index = (first + torch.arange(length) * dilation).reshape(-1)
            elements = run[value].index_select(dim, index).unflatten(dim, (windows, length))
            return elements.movedim(dim + 1, -1)

        return self._add("window", compute)

    def extend(self, value: Value, dim: int, before: int, extent: Any, mode: str) -> Value:
        def compute(run: Run) -> torch.Tensor:
            length = run[value].shape[dim]
            at = torch.arange(run.size(extent)) - before
            if mode == "replicate":
                at = at.clamp(0, length - 1)
            elif mode == "circular":
                at = at % length
            else:
                at = (length - 1) - ((length - 1) - at.abs()).abs()
            return run[value].index_select(dim, at)

        return self._add("extend", compute)

    def pad(self, value: Value, dim: int, before: int, extent: Any, number: float) -> Value:
        def compute(run: Run) -> torch.Tensor:
            x = run[value]
            at = torch.arange(run.size(extent)) - before
            inside = (at >= 0) & (at < x.shape[dim])
            shape = [1] * x.dim()
            shape[dim] = len(at)
            if x.shape[dim] == 0:
                return x.new_full([*x.shape[:dim], len(at), *x.shape[dim + 1 :]], number)
            elements = x.index_select(dim, torch.where(inside, at, 0))
            return torch.where(inside.view(shape), elements, torch.full([], number, dtype=x.dtype))

        return self._add("pad", compute)

    def cat(self, values: Sequence[Value], dim: int) -> Value:
        values = list(values)
        return self._add("cat", lambda run: torch.cat([run[v] for v in values], dim))

    # -- reductions, creation, gathers

    def reduce(self, op: str, value: Value, dims: Sequence[int], keepdim: bool) -> Value:
        dims = list(dims)
        return self._add(op, lambda run: _reduced(op, run[value], dims, keepdim))

    def full(self, shape: Sequence[Any], dtype: str, number: float, device: str = "cpu") -> Value:
        assert DTYPES[dtype].is_floating_point and device == "cpu"
        return self._add(
            "full", lambda run: torch.full(run.shape(shape), number, dtype=DTYPES[dtype])
        )

    def full_int(self, shape: Sequence[Any], dtype: str, number: int, device: str = "cpu") -> Value:
        assert device == "cpu"
        return self._add(
            "full", lambda run: torch.full(run.shape(shape), number, dtype=DTYPES[dtype])
        )

    def iota(
        self, length: Any, dtype: str, start: Any = 0, step: Any = 1, device: str = "cpu"
    ) -> Value:
        assert device == "cpu"

        def compute(run: Run) -> torch.Tensor:
            return run.size(start) + run.size(step) * torch.arange(
                run.size(length), dtype=DTYPES[dtype]
            )

        return self._add("iota", compute)

    def size_value(self, size: Any, device: str = "cpu") -> Value:
        assert device == "cpu"
        return self._add("size_value", lambda run: torch.tensor(run.size(size)))

    def size_result(self, size: Any) -> Value:
        return self._add("size_result", lambda run: run.size(size))

    def take(self, x: Value, indices: Sequence[Value], dim: int, wrap: bool, error: str) -> Value:
        def compute(run: Run) -> torch.Tensor:
            extents = run[x].shape[dim : dim + len(indices)]
            found = [run[index] for index in indices]
            assert wrap or all(bool((index >= 0).all()) for index in found)
            assert all(bool((i < size).all()) for i, size in zip(found, extents, strict=True))
            return run[x][(slice(None),) * dim + tuple(found)]

        return self._add("take", compute)

    def gather(self, x: Value, index: Value, dim: int, error: str = "gather") -> Value:
        return self._add("gather", lambda run: run[x].gather(dim, run[index]))

    # -- externs

    def extern_call(
        self,
        name: str,
        args: list[Any],
        kwargs: Any,
        operands: Sequence[Value],
        results: list[Any],
        **facts: Any,
    ) -> list[Value | None]:
        self.externs.append((name, facts))
        self.ops.append(name)
        values = [None if result is None else self._new_value() for result in results]

        def step(run: Run) -> None:
            found = _call(name, args, kwargs, operands, run)
            flat = list(found) if isinstance(found, list | tuple) else [found]
            for value, result, tensor in zip(values, results, flat, strict=bool(results)):
                if value is not None:
                    _bind_result(run, result[1], tensor)
                    assert tensor.dtype == DTYPES[result[0]], name
                    run.values[value.number] = tensor

        self.steps.append(step)
        return values

    def extern_size(
        self,
        name: str,
        args: list[Any],
        kwargs: Any,
        operands: Sequence[Value],
        size: Any,
        **facts: Any,
    ) -> None:
        self.externs.append((name, facts))

        def step(run: Run) -> None:
            run.sizes[size] = int(_call(name, args, kwargs, operands, run))

        self.steps.append(step)

    @staticmethod
    def reference(place: int) -> Any:
        return ("reference", place)

    @staticmethod
    def enum(kind: str, name: str) -> Any:
        return ("enum", kind, name)

    @staticmethod
    def size(size: Any) -> Any:
        return ("size", size)


def _bind_result(run: Run, shape: Sequence[Any], tensor: torch.Tensor) -> None:
    for size, actual in zip(shape, tensor.shape, strict=True):
        if isinstance(size, str) and size.isidentifier():
            run.sizes.setdefault(size, actual)
        assert run.size(size) == actual


def _call(name: str, args: list[Any], kwargs: Any, operands: Sequence[Value], run: Run) -> Any:
    namespace, rest = name.split(".", 1)
    packet, overload = rest.rsplit(".", 1)
    op = getattr(getattr(getattr(torch.ops, namespace), packet), overload)

    def convert(argument: Any) -> Any:
        if isinstance(argument, list):
            return [convert(item) for item in argument]
        if not isinstance(argument, tuple):
            return argument
        if argument[0] == "reference":
            return run[operands[argument[1]]]
        if argument[0] == "size":
            return run.size(argument[1])
        if argument[1] == "device":
            return torch.device(argument[2])
        return getattr(torch, argument[2])

    return op(
        *(convert(a) for a in args), **{key: convert(a) for key, a in dict(kwargs or {}).items()}
    )


def _reduced(op: str, x: torch.Tensor, dims: list[int], keepdim: bool) -> torch.Tensor:
    if op in ("argmax", "argmin"):
        return getattr(torch, op)(x, dims[0], keepdim=keepdim)
    if not dims:
        return x.clone()
    if op == "sum":
        return torch.sum(x, dims, keepdim=keepdim, dtype=x.dtype)
    if op in ("max", "min"):
        return getattr(torch, f"a{op}")(x, dims, keepdim=keepdim)
    for dim in sorted(dims, reverse=True):
        if op == "prod":
            x = torch.prod(x, dim, keepdim=keepdim, dtype=x.dtype)
        else:
            x = getattr(torch, op)(x, dim, keepdim=keepdim)
    return x


def _restrided(x: Any, value: Value, run: Run) -> Any:
    """`x` in memory as the value's strides say, unless they overlap."""
    if not isinstance(x, torch.Tensor):
        return x
    if value.strides is None:
        return x.contiguous()
    strides = run.shape(value.strides)
    if any(stride == 0 and size > 1 for stride, size in zip(strides, x.shape, strict=True)):
        return x
    return torch.empty_strided(x.shape, strides, dtype=x.dtype).copy_(x)
