"""How single ATen ops become nodes of the graph IR. One function for each way; the table `HANDLERS` at the end.

A handler returns a Tensor, or a list of them for an op with several results, or raises Unsupported with a reason; the
node then becomes an extern. The importer checks the result's dtype against eager's and adds strides and source.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc import _torch_compat
from mlcc._fx_sizes import Size
from mlcc._fx_types import DTYPES, Tensor, Unsupported
from mlcc._op_table import Row

if TYPE_CHECKING:
    from mlcc.fx_import import Importer

Handler = Callable[["Importer", Node], Any]

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}
_OPMATH = {"f16": "f32", "bf16": "f32"}

# -- pointwise ops of the table

# Eager's kernels for 16-bit tensors take a number beside them in f32 here; elsewhere it is rounded to the
# tensor's dtype first (compared bit by bit with torch 2.13 on the CPU).
_WIDE_NUMBERS = {
    "mul", "div", "div_floor", "div_trunc", "addcmul", "addcdiv", "lerp", "leaky_relu", "leaky_relu_backward", "elu",
    "softplus", "softplus_backward", "threshold_backward", "hardtanh_backward",
}  # fmt: skip


# Ops whose formulas call functions that the core generates in f32 only.
F32_FUNCTIONS = {
    "elu", "erf", "exp", "gelu", "gelu_backward", "gelu_tanh", "gelu_tanh_backward", "log", "sigmoid", "silu",
    "silu_backward", "softplus", "softplus_backward", "tanh", "xlogy",
}  # fmt: skip


class _Operands:
    """The operands of a pointwise op and what its other arguments say."""

    def __init__(self, importer: Importer, node: Node) -> None:
        self.values: list[
            Any
        ] = []  # tensors and numbers, as FX nodes or Python numbers, in schema order
        self.promoted: list[
            Any
        ] = []  # those that take part in type promotion, as fake tensors and numbers
        self.form = ""
        bound = importer.bind(node)
        schema = node.target._schema  # type: ignore[union-attr]
        optional: dict[str, bool] = {}
        for argument in schema.arguments:
            value = bound[argument.name]
            kind = str(argument.type)
            if argument.name == "alpha" and str(node.target).startswith(_SCALED):
                self._add_alpha(value)
            elif kind in ("str", "Optional[str]"):
                self.form = "" if value == argument.default_value else str(value)
            elif kind in ("bool", "Optional[int]") and argument.name in _IGNORED:
                continue
            elif value is None or kind.startswith("Optional["):
                optional[argument.name] = value is not None
                if value is not None:
                    self._add(importer, value)
            else:
                self._add(importer, value)
        if optional and not all(optional.values()):
            self.form = ",".join(name for name, given in optional.items() if given)

    def _add(self, importer: Importer, value: Any) -> None:
        fake = importer.fake(value)
        if not isinstance(fake, torch.Tensor | bool | int | float | torch.SymInt | torch.SymFloat):
            raise Unsupported(f"argument {value!r}")
        self.values.append(value)
        self.promoted.append(fake)

    def _add_alpha(self, value: Any) -> None:
        if isinstance(value, bool | int | float) and value == 1:
            return
        self.form = "alpha"
        self.values.append(value)


# Ops whose alpha scales the second operand; elsewhere alpha is a number like others.
_SCALED = ("aten.add.", "aten.sub.", "aten.rsub.")
_IGNORED = {"self_is_result", "is_result", "memory_format"}


def pointwise(importer: Importer, node: Node) -> Tensor:
    """An overload that the op table has a row for."""
    name = str(node.target)
    operands = _Operands(importer, node)
    rows = importer.table.rows(name, operands.form)
    if not rows:
        raise Unsupported(f"no rule for the form {operands.form or 'without optional arguments'}")
    expected = DTYPES[node.meta["val"].dtype]
    for row in rows:
        if row.arity != len(operands.values):
            raise Unsupported(f"{len(operands.values)} operands, the rule has {row.arity}")
        for computed, result in _promotions(row, operands):
            if result == expected and (computed in row.domain or row.rule == "logical"):
                if computed == "f64" and row.op in F32_FUNCTIONS:
                    raise Unsupported("generated in f32 only")
                return apply_row(importer, row, operands.values, computed, result)
    raise Unsupported(f"no rule for dtype {expected}")


def _promotions(row: Row, operands: _Operands) -> list[tuple[str, str]]:
    """(dtype to compute in, result dtype), the likelier first: in most ops numbers take part in promotion."""
    if row.rule == "logical":
        return [("bool", "bool")]
    promoted = operands.promoted[1:] if row.rule == "select" else operands.promoted
    tensors = [value for value in promoted if isinstance(value, torch.Tensor)]
    found = []
    for values in (promoted, tensors):
        if values:
            computed, result = _torch_compat.promote(row.rule, values)
            if computed in DTYPES and result in DTYPES:
                found.append((DTYPES[computed], DTYPES[result]))
    return found


def apply_row(
    importer: Importer, row: Row, values: Sequence[Any], computed: str, result: str
) -> Tensor:
    """One pointwise node with its operands cast to `computed`, and the result to `result`."""
    wide = row.op in _WIDE_NUMBERS
    rounded = _rounding_dtype(row, values, importer, computed, result)
    operands = []
    for place, value in enumerate(values):
        if row.rule == "select" and place == 0:
            operands.append(importer.cast(importer.tensor(value), "bool"))
        else:
            operands.append(operand(importer, value, computed, computed if wide else rounded))
    node_result = "bool" if row.rule in ("compare", "test", "logical") else computed
    tensor = importer.pointwise(row.op, *operands, dtype=node_result)
    return importer.cast(tensor, result)


def _rounding_dtype(
    row: Row, values: Sequence[Any], importer: Importer, computed: str, result: str
) -> str:
    """The dtype that numbers are rounded to before they are widened to `computed`."""
    if computed != "f32":
        return computed
    if row.rule != "compare":
        return result if result in _OPMATH else computed
    fakes = [importer.fake(value) for value in values]
    dtypes = {
        DTYPES[fake.dtype] for fake in fakes if isinstance(fake, torch.Tensor) and fake.dim() > 0
    }
    narrow = dtypes & set(_OPMATH)
    return narrow.pop() if len(narrow) == 1 and not dtypes & {"f32", "f64"} else computed


def operand(importer: Importer, value: Any, computed: str, rounded: str | None = None) -> Tensor:
    """A tensor or number in dtype `computed`; numbers and 0-d tensors go through `rounded` on the way."""
    rounded = rounded or computed
    fake = importer.fake(value)
    if isinstance(fake, torch.Tensor):
        tensor = importer.tensor(value)
        if fake.dim() == 0 and rounded != computed:
            tensor = importer.cast(tensor, rounded)
        return importer.cast(tensor, computed)
    if isinstance(fake, torch.SymInt | torch.SymFloat):
        return importer.cast(importer.number(value, rounded), computed)
    return importer.number(round_number(fake, rounded) if rounded != computed else fake, computed)


def round_number(number: Any, dtype: str) -> Any:
    """A Python number rounded to a float dtype; unchanged for other dtypes."""
    if dtype in ("f16", "bf16", "f32"):
        return torch.tensor(number, dtype=_TORCH_DTYPES[dtype]).item()
    return number


def symbolic_float(importer: Importer, value: Any) -> Tensor:
    """A SymFloat as a 0-d f64 tensor; Unsupported where its expression has no counterpart."""
    importer.sizes.declare(value)
    return _float_expression(importer, _torch_compat.sym_expr(value))


def _float_expression(importer: Importer, e: Any) -> Tensor:
    kind = type(e).__name__
    if e.is_Number:
        return Tensor(importer.full([], "f64", float(e)), "f64")
    if e.is_integer:
        handle = importer.builder.size_value(importer.sizes.expression(e))
        return importer.cast(Tensor(handle, "i64"), "f64")
    if kind in ("ToFloat", "TruncToFloat", "Identity"):
        return _float_expression(importer, e.args[0])
    if kind == "FloatPow" and e.args[1] == -0.5:
        return importer.pointwise("rsqrt", _float_expression(importer, e.args[0]))
    if (kind == "FloatPow" and e.args[1] == 0.5) or kind == "OpaqueUnaryFn_sqrt":
        return importer.pointwise("sqrt", _float_expression(importer, e.args[0]))
    op = {
        "Add": "add",
        "Mul": "mul",
        "FloatTrueDiv": "div",
        "IntTrueDiv": "div",
        "Max": "maximum",
        "Min": "minimum",
    }
    if kind not in op:
        raise Unsupported(f"number {e}")
    parts = [_float_expression(importer, argument) for argument in e.args]
    result = parts[0]
    for part in parts[1:]:
        result = importer.pointwise(op[kind], result, part)
    return result


def power(importer: Importer, node: Node) -> Tensor:
    """pow with the exponents that eager computes without pow: 2, 3, 0.5, -0.5, -1, -2, 0, 1."""
    bound = importer.bind(node)
    base, exponent = bound["self"], bound["exponent"]
    if not isinstance(exponent, int | float):
        raise Unsupported("exponent is no constant")
    computed, result = _torch_compat.promote("default", [importer.fake(base), exponent])
    dtype = DTYPES.get(computed, "")
    if dtype not in ("f32", "f64") and (exponent not in (1, 2, 3) or dtype == "bool"):
        raise Unsupported(f"exponent {exponent} of {dtype or computed}")
    x = operand(importer, base, dtype)
    return importer.cast(_power(importer, x, exponent, node), DTYPES[result])


def _power(importer: Importer, x: Tensor, exponent: float, node: Node) -> Tensor:
    if exponent == 0:
        one = Tensor(importer.full([], x.dtype, 1), x.dtype)
        return importer.expand(one, importer.shape(node.meta["val"]))
    if exponent == 1:
        return importer.copy(x)
    if exponent == 3:
        return importer.pointwise("mul", importer.pointwise("square", x), x)
    if exponent == -2:
        return importer.pointwise("reciprocal", importer.pointwise("square", x))
    op = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    if op is None:
        raise Unsupported(f"exponent {exponent}")
    return importer.pointwise(op, x)


def nan_to_num(importer: Importer, node: Node) -> Tensor:
    """nan_to_num of floats; the defaults are the dtype's extremes."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    if x.dtype not in ("f16", "bf16", "f32", "f64"):
        return importer.copy(x)
    limits = torch.finfo(_TORCH_DTYPES[x.dtype])
    defaults = {"nan": 0.0, "posinf": limits.max, "neginf": limits.min}
    computed = _OPMATH.get(x.dtype, x.dtype)
    numbers = [
        default if bound[name] is None else bound[name] for name, default in defaults.items()
    ]
    operands = [operand(importer, number, computed, x.dtype) for number in numbers]
    return importer.cast(
        importer.pointwise("nan_to_num", importer.cast(x, computed), *operands), x.dtype
    )


def is_test_of_integers(importer: Importer, node: Node) -> Tensor:
    """isnan and isinf: the op table for floats, False for the rest."""
    x = importer.tensor(node.args[0])
    if x.dtype in ("f16", "bf16", "f32", "f64"):
        return pointwise(importer, node)
    return importer.expand(
        Tensor(importer.full([], "bool", 0), "bool"), importer.shape(node.meta["val"])
    )


# -- casts and copies


def to_copy(importer: Importer, node: Node) -> Tensor:
    """_to_copy: a cast, or a copy where the dtype stays."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    if bound["layout"] not in (None, torch.strided) or bound["pin_memory"]:
        raise Unsupported("layout or pinned memory")
    dtype = DTYPES[node.meta["val"].dtype]
    return importer.copy(x) if x.dtype == dtype else importer.cast(x, dtype)


def convert_element_type(importer: Importer, node: Node) -> Tensor:
    """prims.convert_element_type, which is a view of its operand's values where the dtype stays."""
    x = importer.tensor(node.args[0])
    dtype = DTYPES[node.meta["val"].dtype]
    return importer.copy(x) if x.dtype == dtype else importer.cast(x, dtype)


def copy_of_first(importer: Importer, node: Node) -> Tensor:
    """A fresh tensor of the first argument's elements."""
    return importer.copy(importer.tensor(node.args[0]))


def first_argument(importer: Importer, node: Node) -> Tensor:
    """alias and its kin: the very tensor."""
    return importer.tensor(node.args[0])


def copy_from(importer: Importer, node: Node) -> Tensor:
    """copy(self, src): src broadcast to self's shape, in self's dtype."""
    bound = importer.bind(node)
    dtype = importer.tensor(bound["self"]).dtype
    source = importer.tensor(bound["src"])
    x = importer.cast(source, dtype)
    if importer.shape(importer.fake(bound["src"])) != importer.shape(node.meta["val"]):
        x = importer.expand(x, importer.shape(node.meta["val"]))
    return importer.copy(x)


# -- index maps


def _result_shape(importer: Importer, node: Node) -> list[Size]:
    return importer.shape(node.meta["val"])


def reshape(importer: Importer, node: Node) -> Tensor:
    """view and what else keeps the row-major order: the fake result says the shape."""
    x = importer.tensor(node.args[0])
    shape = _result_shape(importer, node)
    if shape == importer.shape(importer.fake(node.args[0])):
        return x
    return importer.reshape(x, shape)


def expand(importer: Importer, node: Node) -> Tensor:
    """expand, broadcast_in_dim without new inner dims."""
    x = importer.tensor(node.args[0])
    shape = _result_shape(importer, node)
    if shape == importer.shape(importer.fake(node.args[0])):
        return x
    return importer.expand(x, shape)


def permute(importer: Importer, node: Node) -> Tensor:
    """permute(self, dims)."""
    bound = importer.bind(node)
    return _permuted(
        importer, bound["self"], [d % max(1, len(bound["dims"])) for d in bound["dims"]]
    )


def transpose(importer: Importer, node: Node) -> Tensor:
    """transpose.int and t."""
    bound = importer.bind(node)
    rank = importer.fake(bound["self"]).dim()
    if rank < 2:
        return importer.tensor(bound["self"])
    dims = list(range(rank))
    a, b = bound.get("dim0", 0) % rank, bound.get("dim1", 1) % rank
    dims[a], dims[b] = dims[b], dims[a]
    return _permuted(importer, bound["self"], dims)


def _permuted(importer: Importer, x: Any, dims: list[int]) -> Tensor:
    tensor = importer.tensor(x)
    if dims == list(range(len(dims))):
        return tensor
    return Tensor(importer.builder.permute(tensor.handle, dims), tensor.dtype)


def flip(importer: Importer, node: Node) -> Tensor:
    """flip(self, dims), a fresh tensor."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    rank = importer.fake(bound["self"]).dim()
    dims = sorted({d % rank for d in bound["dims"]}) if rank else []
    if not dims:
        return importer.copy(x)
    return Tensor(importer.builder.flip(x.handle, dims), x.dtype)


def slice_tensor(importer: Importer, node: Node) -> Tensor:
    """slice.Tensor(self, dim, start, end, step)."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    x = importer.tensor(bound["self"])
    dim = bound["dim"] % fake.dim()
    length = node.meta["val"].shape[dim]
    step = bound["step"]
    if not isinstance(step, int):
        raise Unsupported("step is no constant")
    start = slice_start(importer, fake.shape[dim], bound["start"], length)
    if start == 0 and step == 1 and importer.size(length) == importer.size(fake.shape[dim]):
        return x
    return importer.slice(x, dim, start, importer.size(length), step)


def slice_start(importer: Importer, extent: Any, start: Any, length: Any) -> Size:
    """Where a slice begins, counted from the front and inside the dimension, without a guard.

    `length` is the result's. Where it says that `start` needs no clamping, the text has no min or max.
    """
    start = importer.fake(start)
    if start is None:
        return 0
    if isinstance(start, int) and start < 0:
        start = extent + start
        first = importer.size(start)
        if isinstance(first, int):
            return max(0, first)
        return first if _equal_sizes(importer, length, extent - start) else f"max(0, {first})"
    first, last = importer.size(start), importer.size(extent)
    if isinstance(first, int) and isinstance(last, int):
        return min(first, last)
    if first == 0 or _equal_sizes(importer, length, extent - start):
        return first
    return f"min({first}, {last})"


def _equal_sizes(importer: Importer, a: Any, b: Any) -> bool:
    return importer.size(a) == importer.size(b)


def select(importer: Importer, node: Node) -> Tensor:
    """select.int(self, dim, index)."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    index = importer.fake(bound["index"])
    if isinstance(index, int):
        index = index + fake.shape[dim] if index < 0 else index
    elif not isinstance(index, torch.SymInt):
        raise Unsupported("index is no size")
    one = importer.slice(importer.tensor(bound["self"]), dim, importer.size(index), 1)
    return importer.reshape(one, _result_shape(importer, node))


def split(importer: Importer, node: Node) -> list[Tensor]:
    """split.Tensor and split_with_sizes: the fake results say the lengths."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dim = bound["dim"] % fake.dim()
    x = importer.tensor(bound["self"])
    pieces = []
    start: Any = 0
    for piece in node.meta["val"]:
        length = piece.shape[dim]
        pieces.append(importer.slice(x, dim, importer.size(start), importer.size(length)))
        start = start + length
    return pieces


def unbind(importer: Importer, node: Node) -> list[Tensor]:
    """unbind.int."""
    bound = importer.bind(node)
    dim = bound["dim"] % importer.fake(bound["self"]).dim()
    x = importer.tensor(bound["self"])
    pieces = []
    for place, piece in enumerate(node.meta["val"]):
        one = importer.slice(x, dim, place, 1)
        pieces.append(importer.reshape(one, importer.shape(piece)))
    return pieces


def cat(importer: Importer, node: Node) -> Tensor:
    """cat of promoted operands; empty one-dimensional ones do not count beside others, as in eager."""
    bound = importer.bind(node)
    result = node.meta["val"]
    dtype = DTYPES[result.dtype]
    tensors = [t for t in bound["tensors"] if not _is_skipped(importer.fake(t), result)]
    if not tensors:
        raise Unsupported("nothing to concatenate")
    operands = [importer.cast(importer.tensor(t), dtype) for t in tensors]
    if len(operands) == 1:
        return importer.copy(operands[0])
    return _concatenated(importer, operands, bound["dim"] % result.dim())


def _is_skipped(fake: Any, result: torch.Tensor) -> bool:
    if fake.dim() != 1 or result.dim() == 1:
        return False
    return isinstance(fake.shape[0], int) and fake.shape[0] == 0


def _concatenated(importer: Importer, operands: Sequence[Tensor], dim: int) -> Tensor:
    if len(operands) == 1:
        return operands[0]
    handle = importer.builder.cat([x.handle for x in operands], dim)
    return Tensor(handle, operands[0].dtype)


def repeat(importer: Importer, node: Node) -> Tensor:
    """repeat(self, repeats), a fresh tensor."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    repeats = [importer.size(r) for r in bound["repeats"]]
    shape = importer.shape(importer.fake(bound["self"]))
    leading: list[Size] = [1] * (len(repeats) - len(shape))
    shape = leading + shape
    if all(r == 1 for r in repeats):
        return importer.copy(importer.reshape(x, shape))
    apart = [size for pair in zip([1] * len(shape), shape, strict=True) for size in pair]
    together = [size for pair in zip(repeats, shape, strict=True) for size in pair]
    wide = importer.expand(importer.reshape(x, apart), together)
    return importer.reshape(wide, _result_shape(importer, node))


def constant_pad(importer: Importer, node: Node) -> Tensor:
    """constant_pad_nd: constants before and after, slices where the padding is negative."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    fake = importer.fake(bound["self"])
    pad = [importer.fake(p) for p in bound["pad"]]
    if not all(isinstance(p, int) for p in pad):
        raise Unsupported("padding is no constant")
    shape: list[Any] = list(fake.shape)
    value = importer.number(bound["value"], x.dtype)
    for place in range(len(pad) // 2):
        dim = fake.dim() - 1 - place
        before, after = pad[2 * place], pad[2 * place + 1]
        x = _padded(importer, x, shape, dim, (before, after), value)
    return importer.copy(x)


def _padded(
    importer: Importer, x: Tensor, shape: list[Any], dim: int, pad: tuple[int, int], value: Tensor
) -> Tensor:
    before, after = pad
    if min(before, after) < 0:
        shape[dim] = shape[dim] + min(before, 0) + min(after, 0)
        x = importer.slice(x, dim, max(0, -before), importer.size(shape[dim]))
    parts = [x]
    for amount, place in ((before, 0), (after, len(parts))):
        if amount > 0:
            sizes = [importer.size(size) for size in shape]
            sizes[dim] = amount
            parts.insert(place if place == 0 else len(parts), importer.expand(value, sizes))
    shape[dim] = shape[dim] + max(before, 0) + max(after, 0)
    return _concatenated(importer, parts, dim)


def slice_scatter(importer: Importer, node: Node) -> Tensor:
    """slice_scatter with step 1: what stands before, the source, what stands behind."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    x, source = importer.tensor(bound["self"]), importer.tensor(bound["src"])
    dim = bound["dim"] % fake.dim()
    if bound["step"] != 1:
        raise Unsupported("step is not 1")
    extent, length = fake.shape[dim], importer.fake(bound["src"]).shape[dim]
    start = slice_start(importer, extent, bound["start"], length)
    source = importer.cast(source, x.dtype)
    if start == 0 and importer.size(length) == importer.size(extent):
        return importer.copy(source)
    parts = [source]
    if start != 0:
        parts.insert(0, importer.slice(x, dim, 0, start))
    rest = _size_behind(importer, extent, bound["start"], start, length)
    if rest != 0:
        covered = importer.size(length)
        end = (
            start + covered
            if isinstance(start, int) and isinstance(covered, int)
            else f"{start} + {covered}"
        )
        parts.append(importer.slice(x, dim, end, rest))
    return _concatenated(importer, parts, dim)


def _size_behind(importer: Importer, extent: Any, given: Any, start: Size, length: Any) -> Size:
    """How much of a dimension stands behind a slice of it that begins at `start`, where `given` was asked for."""
    given = importer.fake(given) or 0
    if isinstance(given, int) and given < 0:
        given = extent + given
    if importer.size(given) == start:
        return importer.size(extent - given - length)
    return f"{importer.size(extent)} - ({start}) - ({importer.size(length)})"


def broadcast_in_dim(importer: Importer, node: Node) -> Tensor:
    """prims.broadcast_in_dim(a, shape, dims): operand dim i becomes result dim dims[i]."""
    bound = importer.bind(node)
    x = importer.tensor(bound["a"])
    source = importer.shape(importer.fake(bound["a"]))
    shape = _result_shape(importer, node)
    spread: list[Size] = [1] * len(shape)
    for size, dim in zip(source, bound["broadcast_dimensions"], strict=True):
        spread[dim] = size
    if spread != source:
        x = importer.reshape(x, spread)
    return x if spread == shape else importer.expand(x, shape)


# -- reductions


def _dims(importer: Importer, node: Node, name: str = "dim") -> tuple[list[int], bool]:
    """(dims counted from the front, keepdim); no dims given means all."""
    bound = importer.bind(node)
    rank = importer.fake(node.args[0]).dim()
    dims = bound.get(name)
    if dims is None or dims == []:
        dims = list(range(rank))
    elif isinstance(dims, int):
        dims = [dims]
    dims = sorted({d % rank for d in dims}) if rank else []
    return dims, bool(bound.get("keepdim", False))


def _summed(importer: Importer, node: Node, op: str) -> tuple[Tensor, list[int]]:
    """sum or prod in the dtype that eager accumulates in; and the dims."""
    x = importer.tensor(node.args[0])
    result = DTYPES[node.meta["val"].dtype]
    x = importer.cast(importer.cast(x, result), _OPMATH.get(result, result))
    dims, keepdim = _dims(importer, node)
    return importer.reduce(op, x, dims, keepdim), dims


def sum_(importer: Importer, node: Node) -> Tensor:
    """sum with and without dims."""
    x, _ = _summed(importer, node, "sum")
    return importer.cast(x, DTYPES[node.meta["val"].dtype])


def prod(importer: Importer, node: Node) -> Tensor:
    """prod with and without dim."""
    x, _ = _summed(importer, node, "prod")
    return importer.cast(x, DTYPES[node.meta["val"].dtype])


def mean(importer: Importer, node: Node) -> Tensor:
    """mean: the sum over the count, in the dtype of the sum."""
    x, dims = _summed(importer, node, "sum")
    count = element_count(importer, importer.fake(node.args[0]), dims, x.dtype)
    return importer.cast(importer.pointwise("div", x, count), DTYPES[node.meta["val"].dtype])


def element_count(
    importer: Importer, fake: torch.Tensor, dims: Sequence[int], dtype: str, less: float = 0
) -> Tensor:
    """How many elements a reduction over `dims` takes in, less a correction (not below 0), as a 0-d constant."""
    count: Any = math.prod([fake.shape[d] for d in dims])
    if isinstance(count, int):
        return Tensor(importer.full([], dtype, max(0, count - less)), dtype)
    size = importer.size(count)
    if less and int(less) != less:
        raise Unsupported("correction is no integer")
    text = f"max(0, {size} - {int(less)})" if less else size
    return importer.cast(Tensor(importer.builder.size_value(text), "i64"), dtype)


def extreme(op: str) -> Handler:
    """amax, amin, max and min of all elements."""

    def handler(importer: Importer, node: Node) -> Tensor:
        x = importer.tensor(node.args[0])
        dims, keepdim = _dims(importer, node)
        return _extreme(importer, op, x, dims, keepdim)

    return handler


def _extreme(importer: Importer, op: str, x: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
    """Reduction max or min of any dtype: the core compares floats in f32 and f64."""
    if x.dtype == "bool":
        return importer.reduce({"max": "any", "min": "all"}[op], x, dims, keepdim)
    wide = importer.cast(x, _OPMATH.get(x.dtype, x.dtype))
    return importer.cast(importer.reduce(op, wide, dims, keepdim), x.dtype)


def _extreme_index(
    importer: Importer, op: str, x: Tensor, dims: Sequence[int], keepdim: bool
) -> Tensor:
    """Reduction argmax or argmin of any dtype."""
    comparable = importer.cast(x, "u8" if x.dtype == "bool" else _OPMATH.get(x.dtype, x.dtype))
    return importer.reduce(op, comparable, dims, keepdim)


def extreme_with_index(op: str) -> Handler:
    """max.dim and min.dim: values and the first index of each."""

    def handler(importer: Importer, node: Node) -> list[Tensor]:
        x = importer.tensor(node.args[0])
        dims, keepdim = _dims(importer, node)
        if not dims:
            zero = Tensor(importer.full([], "i64", 0), "i64")
            return [importer.copy(x), zero]
        values = _extreme(importer, op, x, dims, keepdim)
        return [values, _extreme_index(importer, f"arg{op}", x, dims, keepdim)]

    return handler


def extreme_index(op: str) -> Handler:
    """argmax and argmin; without dim over all elements in row-major order."""

    def handler(importer: Importer, node: Node) -> Tensor:
        bound = importer.bind(node)
        x = importer.tensor(bound["self"])
        fake = importer.fake(bound["self"])
        shape = _result_shape(importer, node)
        if fake.dim() == 0:
            return Tensor(importer.full(shape, "i64", 0), "i64")
        if bound["dim"] is None:
            flat = importer.reshape(x, [importer.size(math.prod(fake.shape))])
            index = _extreme_index(importer, op, flat, [0], False)
            return importer.reshape(index, shape) if shape else index
        return _extreme_index(importer, op, x, [bound["dim"] % fake.dim()], bool(bound["keepdim"]))

    return handler


def truth(op: str) -> Handler:
    """any and all; of u8 tensors eager gives u8."""

    def handler(importer: Importer, node: Node) -> Tensor:
        x = importer.cast(importer.tensor(node.args[0]), "bool")
        dims, keepdim = _dims(importer, node)
        return importer.cast(importer.reduce(op, x, dims, keepdim), DTYPES[node.meta["val"].dtype])

    return handler


def _variance(importer: Importer, node: Node) -> tuple[Tensor, Tensor]:
    """(variance, mean) by two passes, in f32 or f64, in the shape that keepdim asks for."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    dtype = DTYPES[fake.dtype]
    computed = _OPMATH.get(dtype, dtype)
    if computed not in ("f32", "f64"):
        raise Unsupported(f"variance of {dtype}")
    x = importer.cast(importer.tensor(bound["self"]), computed)
    dims, keepdim = _dims(importer, node)
    count = element_count(importer, fake, dims, computed)
    centre = importer.pointwise("div", importer.reduce("sum", x, dims, True), count)
    squares = importer.pointwise("square", importer.pointwise("sub", x, centre))
    total = importer.reduce("sum", squares, dims, keepdim)
    correction = _correction(bound)
    divisor = element_count(importer, fake, dims, computed, correction) if correction else count
    shape = importer.shape(_first(node.meta["val"]))
    centre = centre if keepdim or not dims else importer.reshape(centre, shape)
    return importer.pointwise("div", total, divisor), centre


def _first(value: Any) -> Any:
    return value[0] if isinstance(value, list | tuple) else value


def _correction(bound: dict[str, Any]) -> float:
    if "unbiased" in bound:
        return 1 if bound["unbiased"] else 0
    correction = bound["correction"]
    if correction is None:
        return 1
    if not isinstance(correction, int | float):
        raise Unsupported("correction is no constant")
    return correction


def var(importer: Importer, node: Node) -> Tensor:
    """var in all its overloads."""
    variance, _ = _variance(importer, node)
    return importer.cast(variance, DTYPES[node.meta["val"].dtype])


def std(importer: Importer, node: Node) -> Tensor:
    """std in all its overloads."""
    variance, _ = _variance(importer, node)
    return importer.cast(importer.pointwise("sqrt", variance), DTYPES[node.meta["val"].dtype])


def var_mean(importer: Importer, node: Node) -> list[Tensor]:
    """var_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    return [importer.cast(x, dtype) for x in _variance(importer, node)]


def std_mean(importer: Importer, node: Node) -> list[Tensor]:
    """std_mean in all its overloads."""
    dtype = DTYPES[node.meta["val"][0].dtype]
    variance, centre = _variance(importer, node)
    return [
        importer.cast(importer.pointwise("sqrt", variance), dtype),
        importer.cast(centre, dtype),
    ]


# -- gathers


def _index(importer: Importer, argument: Any) -> Tensor:
    index = importer.tensor(argument)
    if index.dtype not in ("i64", "i32"):
        raise Unsupported(f"index is {index.dtype}")
    return importer.cast(index, "i64")


def _taken(importer: Importer, x: Any, index: Tensor, dim: int, wrap: bool, error: str) -> Tensor:
    tensor = importer.tensor(x)
    handle = importer.builder.take(tensor.handle, index.handle, dim, wrap, error)
    return Tensor(handle, tensor.dtype)


def embedding(importer: Importer, node: Node) -> Tensor:
    """embedding(weight, indices, ...): rows of the weight; the other arguments matter to its backward only."""
    bound = importer.bind(node)
    return _taken(
        importer, bound["weight"], _index(importer, bound["indices"]), 0, False, "embedding"
    )


def index_select(importer: Importer, node: Node) -> Tensor:
    """index_select(self, dim, index)."""
    bound = importer.bind(node)
    fake = importer.fake(bound["self"])
    if fake.dim() == 0:
        raise Unsupported("operand is 0-d")
    index = _index(importer, bound["index"])
    if importer.fake(bound["index"]).dim() == 0:
        index = importer.reshape(index, [1])
    return _taken(importer, bound["self"], index, bound["dim"] % fake.dim(), False, "index_select")


def index_tensor(importer: Importer, node: Node) -> Tensor:
    """index.Tensor with one integer index."""
    bound = importer.bind(node)
    given = [(dim, index) for dim, index in enumerate(bound["indices"]) if index is not None]
    if len(given) != 1:
        raise Unsupported(f"{len(given)} indices")
    dim, index = given[0]
    return _taken(importer, bound["self"], _index(importer, index), dim, True, "index")


def gather(importer: Importer, node: Node) -> Tensor:
    """gather(self, dim, index)."""
    bound = importer.bind(node)
    fake, index_fake = importer.fake(bound["self"]), importer.fake(bound["index"])
    if fake.dim() == 0 or fake.dim() != index_fake.dim():
        raise Unsupported("ranks differ")
    x = importer.tensor(bound["self"])
    index = _index(importer, bound["index"])
    handle = importer.builder.gather(x.handle, index.handle, bound["dim"] % fake.dim())
    return Tensor(handle, x.dtype)


# -- creation


def full(importer: Importer, node: Node) -> Tensor:
    """full, full_like and scalar_tensor: the fake result says shape and dtype."""
    bound = importer.bind(node)
    name = next(name for name in ("fill_value", "s", "value") if name in bound)
    if bound.get("pin_memory"):
        raise Unsupported("pinned memory")
    dtype = DTYPES[node.meta["val"].dtype]
    value = importer.fake(bound[name])
    shape = _result_shape(importer, node)
    if isinstance(value, bool | int | float):
        if dtype not in ("f16", "bf16", "f32", "f64"):
            value = int(value)
        return Tensor(importer.full(shape, dtype, value), dtype)
    number = importer.number(value, dtype)
    return importer.expand(number, shape) if shape else number


def arange(importer: Importer, node: Node) -> Tensor:
    """arange.start_step: integers exactly, floats as start + step * i in f64, as eager does."""
    bound = importer.bind(node)
    start, step = importer.fake(bound["start"]), importer.fake(bound["step"])
    dtype = DTYPES[node.meta["val"].dtype]
    (length,) = _result_shape(importer, node)
    if all(isinstance(v, int | torch.SymInt) for v in (start, step)):
        handle = importer.builder.iota(length, "i64", importer.size(start), importer.size(step))
        return importer.cast(Tensor(handle, "i64"), dtype)
    if dtype not in ("f16", "bf16", "f32", "f64"):
        raise Unsupported("integers from float steps")
    return _float_range(importer, length, start, step, dtype)


def _float_range(importer: Importer, length: Size, start: Any, step: Any, dtype: str) -> Tensor:
    index = importer.cast(Tensor(importer.builder.iota(length, "i64", 0, 1), "i64"), "f64")
    scaled = importer.pointwise("mul", index, importer.number(step, "f64"))
    return importer.cast(importer.pointwise("add", scaled, importer.number(start, "f64")), dtype)


def iota(importer: Importer, node: Node) -> Tensor:
    """prims.iota(length, start=, step=, dtype=)."""
    bound = importer.bind(node)
    (length,) = _result_shape(importer, node)
    start, step = importer.size(bound["start"]), importer.size(bound["step"])
    handle = importer.builder.iota(length, "i64", start, step)
    return importer.cast(Tensor(handle, "i64"), DTYPES[node.meta["val"].dtype])


def _aten(handler: Handler, *names: str) -> dict[str, Handler]:
    return {f"aten.{name}": handler for name in names}


# Overload -> handler. The op table's overloads need no row here unless numbers decide how they are computed.
HANDLERS: dict[str, Handler] = {
    # pointwise
    **_aten(power, "pow.Tensor_Scalar"),
    **_aten(nan_to_num, "nan_to_num.default"),
    **_aten(is_test_of_integers, "isnan.default", "isinf.default"),
    # casts and copies
    **_aten(to_copy, "_to_copy.default"),
    **_aten(copy_of_first, "clone.default", "lift_fresh_copy.default"),
    **_aten(
        first_argument, "alias.default", "detach.default", "lift.default", "lift_fresh.default"
    ),
    **_aten(copy_from, "copy.default"),
    "prims.convert_element_type.default": convert_element_type,
    # index maps
    **_aten(
        reshape, "view.default", "_unsafe_view.default", "reshape.default", "_reshape_alias.default"
    ),
    **_aten(reshape, "unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims"),
    **_aten(expand, "expand.default"),
    **_aten(permute, "permute.default"),
    **_aten(transpose, "t.default", "transpose.int"),
    **_aten(flip, "flip.default"),
    **_aten(slice_tensor, "slice.Tensor"),
    **_aten(select, "select.int"),
    **_aten(split, "split.Tensor", "split_with_sizes.default"),
    **_aten(unbind, "unbind.int"),
    **_aten(cat, "cat.default"),
    **_aten(repeat, "repeat.default"),
    **_aten(constant_pad, "constant_pad_nd.default"),
    **_aten(slice_scatter, "slice_scatter.default"),
    "prims.broadcast_in_dim.default": broadcast_in_dim,
    "prims.split_dim.default": reshape,
    "prims.collapse_view.default": reshape,
    "prims.squeeze.default": reshape,
    "prims.transpose.default": permute,
    # reductions
    **_aten(sum_, "sum.default", "sum.dim_IntList"),
    **_aten(prod, "prod.default", "prod.dim_int"),
    **_aten(mean, "mean.default", "mean.dim"),
    **_aten(extreme("max"), "amax.default", "max.default"),
    **_aten(extreme("min"), "amin.default", "min.default"),
    **_aten(extreme_with_index("max"), "max.dim"),
    **_aten(extreme_with_index("min"), "min.dim"),
    **_aten(extreme_index("argmax"), "argmax.default"),
    **_aten(extreme_index("argmin"), "argmin.default"),
    **_aten(truth("any"), "any.default", "any.dim", "any.dims"),
    **_aten(truth("all"), "all.default", "all.dim", "all.dims"),
    **_aten(var, "var.default", "var.dim", "var.correction"),
    **_aten(std, "std.default", "std.dim", "std.correction"),
    **_aten(var_mean, "var_mean.default", "var_mean.dim", "var_mean.correction"),
    **_aten(std_mean, "std_mean.default", "std_mean.dim", "std_mean.correction"),
    # gathers
    **_aten(embedding, "embedding.default"),
    **_aten(index_select, "index_select.default"),
    **_aten(index_tensor, "index.Tensor", "_unsafe_index.Tensor"),
    **_aten(gather, "gather.default"),
    # creation
    **_aten(full, "full.default", "full_like.default", "scalar_tensor.default"),
    **_aten(arange, "arange.start_step"),
    "prims.iota.default": iota,
}
