"""How pointwise ops, casts and copies become nodes of the graph IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx import Node

from mlcc import _torch_compat, _torch_sizes
from mlcc._fx_types import DTYPES, FLOATS, LIMITS, OPMATH, Tensor, Unsupported, device_of
from mlcc._op_table import Row

if TYPE_CHECKING:
    from mlcc.fx_import import Importer

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

# Eager's kernels for 16-bit tensors take a number beside them in f32 here; elsewhere it is rounded to the
# tensor's dtype first (compared bit by bit with torch 2.13 on the CPU).
_WIDE_NUMBERS = {
    "mul", "div", "div_floor", "div_trunc", "addcmul", "addcdiv", "lerp", "leaky_relu", "leaky_relu_backward", "elu",
    "softplus", "softplus_backward", "threshold_backward", "hardtanh_backward",
}  # fmt: skip


class _Operands:
    """The operands of a pointwise op and what its other arguments say."""

    def __init__(self, importer: Importer, node: Node) -> None:
        # Tensors and numbers, as FX nodes or Python numbers, in the schema's order.
        self.values: list[Any] = []
        # Those that take part in type promotion, as fake tensors and numbers.
        self.promoted: list[Any] = []
        self.form = ""
        bound = importer.bind(node)
        schema = node.target._schema
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
    if name.startswith("aten.rsub.") and importer.fake(node.args[0]).dtype == torch.bool:
        raise Unsupported("eager refuses to subtract a bool")
    expected = DTYPES[node.meta["val"].dtype]
    for row in rows:
        if row.arity != len(operands.values):
            raise Unsupported(f"{len(operands.values)} operands, the rule has {row.arity}")
        for computed, result in _promotions(row, operands):
            if result == expected and (computed in row.domain or row.rule == "logical"):
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
        return result if result in OPMATH else computed
    fakes = [importer.fake(value) for value in values]
    dtypes = {
        DTYPES[fake.dtype] for fake in fakes if isinstance(fake, torch.Tensor) and fake.dim() > 0
    }
    narrow = dtypes & set(OPMATH)
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
        return torch.tensor(number, dtype=_TORCH_DTYPES[dtype], device="cpu").item()
    return number


def symbolic_float(importer: Importer, value: Any) -> Tensor:
    """A SymFloat as a 0-d f64 tensor; Unsupported where its expression has no counterpart."""
    if _torch_sizes.sym_name(value) not in importer.numbers:
        importer.sizes.declare(value)
    return _float_expression(importer, _torch_sizes.sym_expr(value))


def _float_expression(importer: Importer, e: Any) -> Tensor:
    kind = type(e).__name__
    if e.is_Number:
        return importer.number(float(e), "f64")
    if str(e) in importer.numbers:
        return importer.numbers[str(e)]
    if e.is_integer:
        handle = importer.builder.size_value(importer.sizes.expression(e))
        return importer.cast(Tensor(handle, "i64"), "f64")
    if kind in ("ToFloat", "TruncToFloat", "Identity"):
        return _float_expression(importer, e.args[0])
    if kind == "FloatPow" and e.args[1] == -0.5:
        return importer.pointwise("rsqrt", _float_expression(importer, e.args[0]))
    if (kind == "FloatPow" and e.args[1] == 0.5) or kind == "OpaqueUnaryFn_sqrt":
        return importer.pointwise("sqrt", _float_expression(importer, e.args[0]))
    if kind == "Abs":
        return importer.pointwise("abs", _float_expression(importer, e.args[0]))
    op = {
        "Add": "add",
        "Mul": "mul",
        "FloatTrueDiv": "div",
        "IntTrueDiv": "div",
        "Max": "maximum",
        "Min": "minimum",
        "FloatPow": "pow",
    }
    if kind not in op or len(e.args) < 2:
        raise Unsupported(f"number {e}")
    parts = [_float_expression(importer, argument) for argument in e.args]
    result = parts[0]
    for part in parts[1:]:
        result = importer.pointwise(op[kind], result, part)
    return result


def multiply_add(importer: Importer, node: Node) -> Tensor:
    """prims.fma(a, b, c), which torch computes by a multiplication and an addition, each rounded to its dtype."""
    a, b, c = node.args
    _, product = _torch_compat.promote("default", [importer.fake(a), importer.fake(b)])
    factors = DTYPES[product]
    x = _in_opmath(importer, "and" if factors == "bool" else "mul", [a, b], factors)
    total = DTYPES[node.meta["val"].dtype]
    wide = OPMATH.get(total, total)
    op = "or" if total == "bool" else "add"
    x = importer.pointwise(op, importer.cast(x, wide), operand(importer, c, wide))
    return importer.cast(x, total)


def _in_opmath(importer: Importer, op: str, values: Sequence[Any], dtype: str) -> Tensor:
    """A pointwise op of tensors and numbers, computed as eager computes `dtype` and rounded to it."""
    wide = OPMATH.get(dtype, dtype)
    operands = [operand(importer, value, wide) for value in values]
    return importer.cast(importer.pointwise(op, *operands), dtype)


def hardtanh(importer: Importer, node: Node) -> Tensor:
    """hardtanh, whose limits are cut to integers beside tensors of integers."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    limits = [bound["min_val"], bound["max_val"]]
    if x.dtype in FLOATS:
        return pointwise(importer, node)
    if not all(isinstance(limit, int | float) for limit in limits):
        raise Unsupported("a limit is no constant")
    numbers = [operand(importer, int(limit), x.dtype) for limit in limits]
    return importer.pointwise("clamp", x, *numbers)


def power(importer: Importer, node: Node) -> Tensor:
    """pow with a number as exponent; eager computes 2, 3, 0.5, -0.5, -1, -2, 0, 1 and integers' powers without pow."""
    bound = importer.bind(node)
    base, exponent = bound["self"], bound["exponent"]
    if not isinstance(exponent, int | float):
        raise Unsupported("exponent is no constant")
    computed, result = _torch_compat.promote("default", [importer.fake(base), exponent])
    dtype = DTYPES.get(computed, "")
    is_integer = dtype in LIMITS and isinstance(exponent, int) and 0 < exponent < 64
    if (
        dtype not in ("f32", "f64")
        and not is_integer
        and (exponent not in (1, 2, 3) or dtype == "bool")
    ):
        raise Unsupported(f"exponent {exponent} of {dtype or computed}")
    x = operand(importer, base, dtype)
    if is_integer:
        return importer.cast(_integer_power(importer, x, int(exponent)), DTYPES[result])
    exponent = round_number(exponent, DTYPES[result])
    return importer.cast(_power(importer, x, exponent, node), DTYPES[result])


def _integer_power(importer: Importer, x: Tensor, exponent: int) -> Tensor:
    """By squaring: integers wrap around, whatever the order."""
    if exponent == 1:
        return importer.copy(x)
    root = _integer_power(importer, x, exponent // 2) if exponent > 3 else x
    square = importer.pointwise("square", root)
    return importer.pointwise("mul", square, x) if exponent % 2 else square


def _power(importer: Importer, x: Tensor, exponent: float, node: Node) -> Tensor:
    if exponent == 0:
        fake = node.meta["val"]
        return Tensor(importer.full(importer.shape(fake), x.dtype, 1, device_of(fake)), x.dtype)
    if exponent == 1:
        return importer.copy(x)
    if exponent == 3:
        return importer.pointwise("mul", importer.pointwise("square", x), x)
    if exponent == -2:
        return importer.pointwise("reciprocal", importer.pointwise("square", x))
    op = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    fake = node.meta["val"]
    # Of -inf these are not what sqrt gives; eager's kernel for float16 on CPUs alone computes them so.
    is_pow_of_half = fake.dtype == torch.float16 and fake.device.type == "cpu"
    if op is None or (is_pow_of_half and abs(exponent) == 0.5):
        return importer.pointwise("pow", x, importer.number(exponent, x.dtype))
    return importer.pointwise(op, x)


def nan_to_num(importer: Importer, node: Node) -> Tensor:
    """nan_to_num of floats; the defaults are the dtype's extremes."""
    bound = importer.bind(node)
    x = importer.tensor(bound["self"])
    if x.dtype not in FLOATS:
        return importer.copy(x)
    limits = torch.finfo(_TORCH_DTYPES[x.dtype])
    defaults = {"nan": 0.0, "posinf": limits.max, "neginf": limits.min}
    computed = OPMATH.get(x.dtype, x.dtype)
    numbers = [
        default if bound[name] is None else bound[name] for name, default in defaults.items()
    ]
    operands = [operand(importer, number, computed, x.dtype) for number in numbers]
    return importer.cast(
        importer.pointwise("nan_to_num", importer.cast(x, computed), *operands), x.dtype
    )


def nan_or_infinity(importer: Importer, node: Node) -> Tensor:
    """isnan, isinf, isposinf and isneginf: the op table for floats, False for the rest."""
    x = importer.tensor(node.args[0])
    return pointwise(importer, node) if x.dtype in FLOATS else _false(importer, node)


def signbit(importer: Importer, node: Node) -> Tensor:
    """signbit: the op table for numbers, False for truth values."""
    is_bool = importer.tensor(node.args[0]).dtype == "bool"
    return _false(importer, node) if is_bool else pointwise(importer, node)


def _false(importer: Importer, node: Node) -> Tensor:
    fake = node.meta["val"]
    return Tensor(importer.full(importer.shape(fake), "bool", 0, device_of(fake)), "bool")


# -- casts and copies


def to_copy(importer: Importer, node: Node) -> Tensor:
    """_to_copy: a cast, or a copy where the dtype stays. vmap's traces have it of numbers too."""
    bound = importer.bind(node)
    if isinstance(bound["self"], bool | int | float):
        target = node.meta["val"]
        return importer.number(bound["self"], DTYPES[target.dtype], device_of(target))
    x = importer.tensor(bound["self"])
    if bound["layout"] not in (None, torch.strided) or bound["pin_memory"]:
        raise Unsupported("layout or pinned memory")
    source, target = device_of(importer.fake(bound["self"])), device_of(node.meta["val"])
    if source != target:
        raise Unsupported(f"copy from {source} to {target}")
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
    shape = importer.shape(importer.fake(bound["src"]))
    x = importer.broadcast(importer.cast(source, dtype), shape, importer.shape(node.meta["val"]))
    return importer.copy(x)
