"""Random programs in torch, as text: inputs and statements, drawn by a seed over views, writes, reductions and indices.

A statement is drawn, run eagerly, and kept if eager takes it, so each program runs. What a template writes in braces
is filled in: {a} {b} any value, {f} a float, {t} {q} a float of rank 3 and 4 (by leading ones), {n} an integer tensor,
{m} a bool, {d} a dimension, {s} a slice's start, {k} a small number, {c} a constant, {i} indices into any dimension of
{a}; {g} a state, {h} a state or a view of one and {r}
the last value (state_programs.py).
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from tests.python.tracing import FORMS

# Of an input or a result: an outer product of two such must be small.
MOST_ELEMENTS = 4_000
FLOATS = ("float32", "float32", "float32", "float64", "bfloat16", "float16")
OTHERS = ("int64", "int32", "uint8", "bool", "int8", "int16")
SIZES = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 40)


@dataclass(frozen=True)
class Input:
    """A tensor as an expression of torch, for any shape of the same rank."""

    shape: tuple[int, ...]
    dtype: str
    seed: int
    layout: str  # what is done to it: "", ".mT", "[..., ::2]", ...

    @property
    def text(self) -> str:
        """The expression."""
        shape = list(self.shape)
        if self.layout == ".mT":
            shape[-2:] = shape[:-3:-1]
        if self.layout == "[..., ::2]":
            shape[-1] *= 2
        if self.layout == "[1:]":
            shape[0] += 1
        generator = f"generator=torch.Generator().manual_seed({self.seed})"
        if self.dtype == "bool":
            values = f"(torch.rand({shape}, {generator}) < 0.5)"
        elif self.dtype not in FLOATS:
            values = f"torch.randint(0, 9, {shape}, {generator}).to(torch.{self.dtype})"
        elif (
            self.seed % 2
        ):  # sums and products of these are exact, so that comparisons have one answer
            values = f"(torch.randint(-16, 17, {shape}, {generator}) / 8).to(torch.{self.dtype})"
        else:
            values = f"torch.randn({shape}, {generator}).to(torch.{self.dtype})"
        return values + self.layout


@dataclass(frozen=True)
class Program:
    """Statements over arguments x0, x1, ..., the names that are returned, and what they are called with.

    The first `num_states` inputs, h0, h1, ..., live through all calls: as the first arguments or, where `holder` says
    so, as a module's "buffers" or plain "attributes". The others, b0, b1, ..., are new in each call; its arguments are
    expressions of them, or they themselves in two calls if there are no `calls`.
    """

    inputs: tuple[Input, ...]
    statements: tuple[str, ...]
    outputs: tuple[str, ...]
    entry: str  # how it is compiled: "jit" or "compile"
    dynamic: bool
    backward: bool
    num_states: int = 0
    holder: str = ""
    calls: tuple[tuple[str, ...], ...] = ()

    @property
    def call_texts(self) -> tuple[tuple[str, ...], ...]:
        """The arguments of each call."""
        num_bases = len(self.inputs) - self.num_states
        return self.calls or (tuple(f"b{place}" for place in range(num_bases)),) * 2

    @property
    def text(self) -> str:
        """The definition of `program`."""
        states = [f"h{place}" for place in range(self.num_states)]
        names = [f"x{place}" for place in range(len(self.call_texts[0]))]
        body = [*self.statements, f"return [{', '.join(self.outputs)}]"]
        if not self.holder:
            return _definition("program", [*states, *names], body)
        body = [re.sub(r"\b(h\d+|seen)\b", r"self.\1", line) for line in body]
        make = ["super().__init__()", "self.seen = []"]
        if self.holder == "buffers":
            make += [f'self.register_buffer("{name}", None)' for name in states]
        methods = _definition("__init__", ["self"], make) + _definition(
            "forward", ["self", *names], body
        )
        lines = "".join(f"    {line}\n" for line in methods.splitlines())
        return f"class Program(torch.nn.Module):\n{lines}\n\nprogram = Program()\n"

    @property
    def function(self) -> Callable[..., Any]:
        """The function, or a new module, whose states are to be set."""
        namespace: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.text, "<program>", "exec"), namespace)
        made: Callable[..., Any] = namespace["program"]
        return made

    def make_inputs(self, call: int = 0) -> list[torch.Tensor]:
        """Fresh ones for a call; floats ask for gradients if the program goes backward, but states do not."""
        inputs = [replace(one, seed=one.seed + 2 * call) for one in self.inputs]
        tensors = [eval(one.text, {"torch": torch}) for one in inputs]
        for tensor in tensors[self.num_states :]:
            if self.backward and tensor.dtype.is_floating_point:
                tensor.requires_grad_()
        return tensors

    def arguments(self, call: int, bases: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """What a call gets beside the states."""
        names = {f"b{place}": base for place, base in enumerate(bases)}
        return [eval(text, {"torch": torch}, names) for text in self.call_texts[call]]

    def resized(self) -> Program:
        """The same over larger sizes; equal sizes stay equal."""
        inputs = tuple(
            replace(one, shape=tuple(size + 1 if size > 1 else size for size in one.shape))
            for one in self.inputs
        )
        return replace(self, inputs=inputs)

    def as_script(self, comment: str) -> str:
        """What shows the failure, for people; run in the repository's root."""
        told = "".join(f"# {line}\n" for line in comment.splitlines())
        inputs = "".join(f"        {one!r},\n" for one in self.inputs)
        calls = "".join(f"        {texts!r},\n" for texts in self.call_texts)
        fields = (
            f"    ({inputs and chr(10)}{inputs}    ),\n    {self.statements!r},\n    {self.outputs!r},\n"
            f"    {self.entry!r},\n    dynamic={self.dynamic},\n    backward={self.backward},\n"
        )
        if self.num_states or self.calls:
            fields += f"    num_states={self.num_states},\n    holder={self.holder!r},\n    calls=(\n{calls}    ),\n"
        shown = "".join(f"#   {line}\n" for line in self.text.splitlines())
        return (
            f'{told}{shown}import sys\n\nsys.path.insert(0, ".")\n\n'
            "from tests.fuzz.program_check import show\n"
            "from tests.fuzz.torch_programs import Input, Program\n\n"
            f"sys.exit(show(Program(\n{fields})))\n"
        )


def _definition(name: str, parameters: Sequence[str], body: Sequence[str]) -> str:
    lines = "".join(f"    {line}\n" for line in body)
    return f"def {name}({', '.join(parameters)}):\n{lines}"


# -- what statements are drawn from; a line without "=" between names gets a new name for its value

POINTWISE = """
{a} + {b} | {a} - {b} | {a} * {b} | {a} / {b} | {f}.exp() | {f}.tanh() | {f}.sigmoid() | {f}.abs().sqrt()
-{a} | {a}.abs() | torch.maximum({a}, {b}) | torch.minimum({a}, {b}) | torch.where({m}, {a}, {b})
torch.where({a} > {b}, {a}, {c}) | {a} > {b} | {a} == {b} | {a} != {c} | {a} < {c} | {a}.clamp(-1, 2)
{a}.clamp(min=0) | {a} + {c} | {c} - {a} | {a} * {c} | {a} / {c} | {a} // {k} | {a} % {k} | {a} ** 2
{m} & {m} | {m} | {n} ^ {n} | {n} << 1 | {n} >> 1 | ~{n} | {m}.logical_not() | {a}.relu() | F.gelu({f})
F.silu({f}) | F.leaky_relu({f}, 0.1) | F.softplus({f}) | {f}.floor() | {f}.round() | {f}.trunc()
{f}.sign() | {a}.float() | {a}.double() | {a}.bfloat16() | {a}.half() | {a}.long() | {a}.int() | {a}.bool()
{a}.to({b}.dtype) | {n}.to(torch.uint8) | {f}.log1p().nan_to_num() | {f}.sin() | {f}.cos() | {f}.atan()
{f}.erf() | {f}.square() | {f}.reciprocal().clamp(-9, 9) | {f}.isnan() | torch.lerp({f}, {f}, 0.3)
torch.addcmul({a}, {b}, {b}) | {a}.masked_fill({m}, {c}) | torch.atan2({f}, {f}) | torch.hypot({f}, {f})
torch.clamp({a}, {b}, {a}) | torch.add({a}, {b}, alpha={k}) | torch.sub({a}, {b}, alpha=2)
torch.true_divide({a}, {k}) | {a}.logical_or({b}) | torch.div({a}, {k}, rounding_mode="floor")
torch.div({a}, {k}, rounding_mode="trunc") | torch.remainder({a}, -{k}) | torch.fmod({a}, {k})
torch.rsub({a}, {b}) | torch.copysign({f}, {a}) | torch.heaviside({f}, {f}) | {f}.frac()
torch.bitwise_and({n}, {n}) | {a}.sgn() | {a}.neg() | torch.zeros_like({a}) + {b}
torch.full_like({a}, {k}) | torch.ones_like({a}, dtype=torch.float32) | {a}.new_zeros({a}.shape) + {a}
torch.arange({a}.shape[{d}]) * {k} | torch.eye({k}) * {k} | F.hardswish({f}) | F.elu({f}) | F.mish({f})
F.softsign({f}) | F.logsigmoid({f})
"""
REDUCTIONS = """
{a}.sum({d}) | {a}.sum() | {f}.mean({d}, keepdim=True) | {a}.amax({d}) | {a}.amin({d}, keepdim=True)
{a}.argmax({d}) | {a}.argmin() | {f}.var({d}) | {f}.std({d}, correction=0) | {a}.prod({d}) | {a}.any({d})
{a}.all() | {f}.softmax({d}) | {f}.log_softmax({d}) | {f}.logsumexp({d}) | {f}.norm() | {f}.norm(dim={d})
F.layer_norm({f}, {f}.shape[-1:]) | {a}.cumsum({d}) | {f}.cumprod({d}) | {a}.max({d})[0] | {a}.min({d})[1]
{f} - {f}.mean() | {f} / ({f}.abs().amax({d}, keepdim=True) + 1) | {a}.sum({d}, keepdim=True)
{a}.sum({d}, dtype=torch.float64) | {a}.count_nonzero({d}) | {f}.var_mean({d})[1] | {a}.cummax({d})[0]
{a}.cummin({d})[1] | {a}.sum((0, -1)) | {f}.mean((0, 1)) | {a}.aminmax()[1] | {f}.logcumsumexp({d})
{f}.median() | {a}.sort({d})[0] | {a}.topk(1, {d})[0] | F.normalize({f}, dim={d}) | {f}.nansum({d})
{f}.nanmean() | F.rms_norm({f}, {f}.shape[-1:]) | F.mse_loss({f}, {f}) | F.smooth_l1_loss({f}, {f})
F.cosine_similarity({f}, {f}, {d}) | {f}.dist({f}) | {a}.cummax({d})[1] | {a}.cummin({d})[0] | {f}.diff(dim={d})
{a}.flip({d}).cumsum({d}) | {a}.cumsum({d}, dtype=torch.float64) | torch.cumulative_trapezoid({f}, dim={d})
{f}.softmin({d}) | F.huber_loss({f}, {f}) | F.binary_cross_entropy_with_logits({f}, {f}.sigmoid())
"""
WINDOWS = """
F.avg_pool1d({t}, 2) | F.max_pool1d({t}, 3, 1, 1) | F.avg_pool2d({q}, 2, 1) | F.max_pool2d({q}, 2)
F.avg_pool2d({q}, 3, 2, 1, count_include_pad=False) | F.avg_pool2d({q}, 2, ceil_mode=True, divisor_override=3)
F.max_pool2d({q}, 3, 1, 1) | F.max_pool2d({q}, 2, 1, dilation=2) | F.max_pool2d({q}, 3, 2, 1, ceil_mode=True)
F.max_pool2d({q}, 2, return_indices=True)[1] | F.adaptive_avg_pool2d({q}, 1) | F.adaptive_max_pool2d({q}, (1, 1))
F.adaptive_avg_pool2d({q}, (2, 1)) | F.lp_pool2d({q}, 2, 2) | F.unfold({q}, 2) | F.unfold({q}, (2, 1), padding=1)
F.unfold({q}, 2, dilation=2, padding=1, stride=2) | F.fold(F.unfold({q}, 2), {q}.shape[-2:], 2)
F.pad({q}, (1, 1, 1, 1), mode="reflect") | F.pad({q}, (1, 0, 2, 1), mode="circular")
F.pad({t}, (2, 1), mode="reflect") | F.pad({q}, (1, 2, 0, 1), mode="replicate")
F.pad({q}, (-1, 1, 1, -1), mode="replicate") | F.pad({q}, (0, 0, 1, 1), value={k}) | F.interpolate({q}, scale_factor=2)
F.interpolate({q}, size=(5, 3)) | F.interpolate({q}, size=(4, 4), mode="nearest-exact")
F.interpolate({q}, size=(5, 3), mode="bilinear")
F.interpolate({q}, scale_factor=2, mode="bilinear", align_corners=True)
F.interpolate({q}, scale_factor=2, mode="bicubic") | F.interpolate({t}, scale_factor=1.5, mode="linear")
F.batch_norm({q}, None, None, training=True) | F.group_norm({q}, 1) | F.instance_norm({q})
{q}.contiguous(memory_format=torch.channels_last) | {q}.to(memory_format=torch.channels_last) * {k}
"""
VIEWS = """
{a}.transpose(0, {d}) | {a}.flip({d}) | {a}.unsqueeze({d}) | {a}.squeeze() | {a}[..., ::2] | {a}[{s}:]
{a}[{s}] | {a}.flatten() | {a}.roll(1, {d}) | {a}.select({d}, 0) | {a}.narrow({d}, 0, 1) | {a}.reshape(-1)
{a}.reshape({a}.shape[::-1]) | {a}.mT | {a}.permute(*reversed(range({a}.dim()))) | {a}.expand({k}, *{a}.shape)
{a}.repeat({k}, *[1] * ({a}.dim() - 1)) | {a}.diagonal() | {a}.unfold({d}, 2, 1) | {a}.contiguous()
{a}.view(-1) | torch.cat([{a}, {a}], {d}) | torch.cat([{a}, {b}], {d}) | torch.stack([{a}, {a}], {d})
torch.stack([{a}, {b}]) | {a}.chunk(2, {d})[0] | {a}.split(2, {d})[-1] | F.pad({a}, (1, 2))
F.pad({a}, (-1, 1), value={c}) | {a}.tril() | {a}.triu(1) | {a}[:, None] | {a}[..., -1]
{a}.movedim(0, {d}) | {a}.unbind({d})[0] | {a}.repeat_interleave(2, {d}) | {a}.clone() | {a}.detach()
{a}[None] | {a}.expand_as({b}) | {a}.broadcast_to({b}.shape) | {a}[{s}::2] | {a}.rot90()
{a}.view(torch.int32) | {a}.unflatten({d}, (1, -1)) | {a}.swapaxes(0, {d}).contiguous()
torch.as_strided({a}, (2,), (1,)) | {a}.new_ones({a}.shape[{d}]) | torch.tile({a}, (2,))
torch.block_diag({a}, {a}) | {a}.ravel() | {a}.adjoint() | F.pad({f}, (1, 1), mode="replicate")
{a}.diag_embed()
"""
INDEXING = """
{a}.index_select({d}, {i}) | {a}[{i}] | {a}[{i} - 1] | {a}.gather({d}, {n}.long() % {a}.shape[{d}])
{a}.take({i}) | {a}[..., {i}] | {a}[{i}, {i}] | torch.take_along_dim({a}, {a}.argsort({d}), {d})
F.embedding({n}.long() % {f}.shape[0], {f}) | {a}.index_add({d}, {i}, {a}.index_select({d}, {i}))
{a}.index_copy({d}, {i}[:1], {a}.narrow({d}, 0, 1)) | {a}.index_fill({d}, {i}, {k})
{a}.scatter({d}, {n}.long() % {a}.shape[{d}], {k}) | {a}.scatter_add({d}, {n}.long() % {a}.shape[{d}], {a})
{f}.scatter_reduce({d}, {n}.long() % {f}.shape[{d}], {f}, "amax") | {a}.index_put(({i},), {a}[{i}])
{f}.index_put(({i},), {f}[{i}], accumulate=True)
{f}.scatter_reduce({d}, {n}.long() % {f}.shape[{d}], {f}, "mean", include_self=False)
torch.bucketize({f}, {f}.flatten().sort()[0]) | F.one_hot({n}.long() % 5, 5)
{a}.select_scatter({a}.select({d}, 0), {d}, -1) | {a}.masked_scatter({m}, {a})
{a}.slice_scatter({a}[1:], 0, 0, -1) | torch.searchsorted({f}.flatten().sort()[0], {f})
{a}[torch.arange({a}.shape[0])] | {a}[:, {i}] | {a}[{i}, ..., 0] | {a}[{i}[:, None], {i}] | {a}.put({i}, {a}.take({i}))
{f}.scatter_reduce({d}, {n}.long() % {f}.shape[{d}], {f}, "amin") | {a}.diagonal_scatter({a}.diagonal())
{f}.scatter_reduce({d}, {n}.long() % {f}.shape[{d}], {f}, "prod") | {a}.index_put(({i}, {i}), {a}[{i}, {i}])
{f}.index_reduce({d}, {i}, {f}.index_select({d}, {i}), "amax")
{a}.index_put(({i}, {i}), {a}[{i}, {i}], accumulate=True)
{a}.index_add({d}, {i}, {a}.index_select({d}, {i}), alpha={k})
{f}.index_reduce({d}, {i}, {f}.index_select({d}, {i}), "mean", include_self=False)
"""
PRODUCTS = """
{f} @ {f}.mT | {f}.mT @ {f} | torch.outer({f}.flatten(), {f}.flatten()) | {f}.flatten().dot({f}.flatten())
F.linear({f}, {f}) | torch.einsum("...i,...i->...", {f}, {f})
"""
WRITES = """
{a}.add_({b}) | {a}.mul_({c}) | {a}.copy_({b}) | {a}.fill_({k}) | {a}.zero_() | {a}[{s}:].add_(1)
{a}[..., ::2] = {b} | {a}[{s}] = {c} | {a}[{i}] = {k} | {a}.masked_fill_({m}, {c})
{a}.sub_({a}.sum({d}, keepdim=True)) | {a}.transpose(0, {d}).add_({k}) | {a} += {b} | {a} *= {k}
{a}.index_add_({d}, {i}, {a}.index_select({d}, {i}).clone()) | {a}.clamp_(-1, 1) | {a}[{m}] = {k}
{f}.relu_() | {f}.exp_().clamp_(max=3) | {a}.neg_() | {a}.select({d}, 0).copy_({a}.select({d}, -1).clone())
{f}.sigmoid_() | {a}.view(-1)[{s}:].mul_(2) | {a}.scatter_({d}, {n}.long() % {a}.shape[{d}], {k})
{a}[:, {s}] += 1 | {a}.index_fill_({d}, {i}, {k}) | {a}.t_() | {a}.squeeze_() | {a}.flatten()[0] = {k}
{a}.diagonal().add_({k}) | {a}.narrow({d}, 0, 1).zero_() | {a}.index_put_(({i},), {a}[{i}], accumulate=True)
torch.add({a}, {b}, out={a}) | {a}.unsqueeze_(0) | {a}.logical_not_() | {a}.cumsum_({d}) | {a}[:, {i}] = {k}
{a}.scatter_add_({d}, {n}.long() % {a}.shape[{d}], {a}.clone()) | {a}[{i}, {i}] = {c}
{a}.index_copy_({d}, {i}[:1], {a}.narrow({d}, -1, 1).clone())
"""


def templates(text: str) -> list[str]:
    return [
        template.strip()
        for line in text.split("\n")
        for template in line.split(" | ")
        if template.strip()
    ]


def _overloads() -> list[str]:
    """A call of each overload of the op table that takes tensors alone."""
    calls = []
    for form in FORMS:
        packet, overload = form.split("[")[0].removeprefix("aten.").rsplit(".", 1)
        schema = getattr(getattr(torch.ops.aten, packet), overload)._schema
        needed = [a for a in schema.arguments if not a.has_default_value()]
        if "[" not in form and all(str(a.type) == "Tensor" for a in needed):
            names = ["{f}", "{a}", "{b}"] if len(needed) > 2 else ["{f}", "{b}"]
            calls.append(f"torch.ops.aten.{packet}.{overload}({', '.join(names[: len(needed)])})")
    return calls


KINDS: list[tuple[list[str], int]] = [
    (templates(POINTWISE), 8),
    (_overloads(), 2),
    (templates(REDUCTIONS), 4),
    (templates(VIEWS), 5),
    (templates(INDEXING), 3),
    (templates(WINDOWS), 2),
    (templates(PRODUCTS), 1),
    (templates(WRITES), 3),
]
WRITE_KIND = len(KINDS) - 1
# A trace with symbols takes four times as long as one without, and longer the more symbols stand in a size: hence few
# such programs, and short ones.
DYNAMIC_SHARE = 0.25
RANKS = {"t": 3, "q": 4}
CONSTANTS = ("0.5", "-1.25", "2", "3", "0", "1", "-2", "True")


class Draft:
    """A program in the making: its values so far."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.values: dict[str, torch.Tensor] = {}
        self.statements: list[str] = []
        self.fresh: list[str] = []  # values that nothing has read yet

    def name(self, fits: Callable[[torch.Tensor], bool]) -> str | None:
        names = [name for name, value in self.values.items() if fits(value)]
        recent = [name for name in names if name in self.fresh]
        if recent and self.random.random() < 0.6:
            return self.random.choice(recent)
        return self.random.choice(names) if names else None

    def is_state(self, tensor: torch.Tensor) -> bool:
        """Whether it is a state or lies in the memory of one."""
        place = tensor.untyped_storage().data_ptr()
        states = [value for name, value in self.values.items() if name[0] == "h"]
        return any(state.untyped_storage().data_ptr() == place for state in states)

    def fill(self, template: str) -> str | None:
        """The template with names and numbers; None if there is no value of a kind."""
        chosen: dict[str, str] = {}

        def value_of(kind: str) -> str | None:
            if kind == "r":
                return next(reversed(self.values))
            if kind == "g":
                return self.random.choice([name for name in self.values if name[0] == "h"])
            if kind == "h":
                return self.name(self.is_state)
            fits: dict[str, Callable[[torch.Tensor], bool]] = {
                "f": lambda t: t.dtype.is_floating_point,
                "n": lambda t: not t.dtype.is_floating_point and t.dtype != torch.bool,
                "m": lambda t: t.dtype == torch.bool,
                "t": lambda t: t.dtype.is_floating_point and t.dim() <= 3,
                "q": lambda t: t.dtype.is_floating_point and t.dim() <= 4,
            }
            return self.name(fits.get(kind, lambda t: True))

        for kind in re.findall(r"\{(\w)\}", template):
            if kind in chosen:
                continue
            first = chosen.get("a") or chosen.get("f") or chosen.get("h")
            subject = self.values[first or next(iter(self.values))]
            if kind == "d":
                chosen[kind] = str(self.random.randint(-subject.dim(), max(subject.dim() - 1, 0)))
            elif kind == "s":
                chosen[kind] = self.random.choice(["0", "1", "-1"])
            elif kind == "k":
                chosen[kind] = str(self.random.randint(1, 4))
            elif kind == "c":
                chosen[kind] = self.random.choice(CONSTANTS)
            elif kind == "i":
                size = max(1, min(subject.shape, default=1))
                places = [self.random.randrange(size) for _ in range(self.random.randint(1, 4))]
                chosen[kind] = f"torch.tensor({places})"
            else:
                found = value_of(kind)
                if found is None:
                    return None
                missing = RANKS.get(kind, 0) - self.values[found].dim()
                chosen[kind] = found + f"[{', '.join(['None'] * missing)}]" * (missing > 0)
        return re.sub(r"\{(\w)\}", lambda match: chosen[match.group(1)], template)

    def try_statement(self, template: str, writes: bool) -> None:
        """Add it if eager takes it."""
        text = self.fill(template)
        if text is None:
            return
        name = f"v{len(self.statements)}"
        line = text if writes else f"{name} = {text}"
        before = {key: (value, value._version) for key, value in self.values.items()}
        scope = dict(self.values)
        try:
            exec(line, {"torch": torch, "F": torch.nn.functional, "seen": []}, scope)
            made = scope.get(name)
        except Exception:  # what it has written by then is of no matter to the program
            return
        if not writes:
            if not _is_plain(made):
                return
            assert isinstance(made, torch.Tensor)
            self.values[name] = made
        for key in before:  # `a += b` binds the name again
            self.values[key] = scope[key]
        self.statements.append(line)
        self.fresh = [one for one in self.fresh if not re.search(rf"\b{one}\b", text)]
        if not writes:
            self.fresh.append(name)


def _is_plain(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.layout == torch.strided
        and not value.dtype.is_complex
        and value.numel() <= MOST_ELEMENTS
        and value.dim() <= 5
    )


def _draw_inputs(draft: Draft) -> tuple[Input, ...]:
    pick = draft.random.choice
    shape = tuple(pick(SIZES) for _ in range(draft.random.choice([0, 1, 2, 2, 2, 3, 3, 4])))
    while math.prod(shape) > MOST_ELEMENTS:
        shape = tuple(min(size, pick(SIZES)) for size in shape)
    inputs = []
    for place in range(draft.random.randint(1, 4)):
        own = shape
        if place and draft.random.random() < 0.4:
            own = tuple(1 if draft.random.random() < 0.3 else size for size in shape)
            own = own[draft.random.randint(0, len(shape)) :]
        kinds = FLOATS if place == 0 or draft.random.random() < 0.5 else FLOATS + OTHERS * 2
        layouts = ["", "", ""]
        if len(own) >= 1:
            layouts += ["[1:]", "[..., ::2]"]
        if len(own) >= 2:
            layouts += [".mT"]
        inputs.append(Input(own, pick(kinds), draft.random.randrange(1 << 20), pick(layouts)))
    return tuple(inputs)


def draw_program(seed: int) -> Program:
    """The program of that seed."""
    draft = Draft(seed)
    inputs = _draw_inputs(draft)
    entry = "compile" if draft.random.random() < 0.2 else "jit"
    backward = draft.random.random() < 0.15
    dynamic = draft.random.random() < DYNAMIC_SHARE
    program = Program(inputs, (), (), entry, dynamic, backward)
    for place, tensor in enumerate(program.make_inputs()):
        draft.values[f"x{place}"] = tensor
    weights = [weight for _, weight in KINDS]
    wanted = draft.random.randint(1, 6 if dynamic else 12)
    for _ in range(4 * wanted):
        if len(draft.statements) == wanted:
            break
        (kind,) = draft.random.choices(range(len(KINDS)), weights)
        draft.try_statement(draft.random.choice(KINDS[kind][0]), kind == WRITE_KIND)
    outputs = [name for name in draft.values if name in draft.fresh] or list(draft.values)[-1:]
    return replace(program, statements=tuple(draft.statements), outputs=tuple(outputs))
