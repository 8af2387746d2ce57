"""How pointwise ops, casts and copies become nodes of the graph IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Node

from mlcc.importer.context import Context
from mlcc.ir.op_table import Row
from mlcc.ir.types import DTYPES, FLOATS, LIMITS, OPMATH, Tensor, Unsupported, device_of
from mlcc.torch_private import dispatch, symints

_TORCH_DTYPES = {name: dtype for dtype, name in DTYPES.items()}

# Eager's kernels for 16-bit tensors take a number beside them in f32 here; elsewhere it is rounded to the
# tensor's dtype first (compared bit by bit with torch 2.13 on the CPU).
_WIDE_NUMBERS = {
    "mul", "div", "div_floor", "div_trunc", "addcmul", "addcdiv", "lerp", "leaky_relu", "leaky_relu_backward", "elu",
    "softplus", "softplus_backward", "threshold_backward", "hardtanh_backward",
}  # fmt: skip


class _Operands:
    """The operands of a pointwise op and what its other arguments say."""

    def __init__(self, context: Context, node: Node) -> None:
        # Tensors and numbers, as FX nodes or Python numbers, in the schema's order.
        self.values: list[Any] = []
        # Those that take part in type promotion, as fake tensors and numbers.
        self.promoted: list[Any] = []
        self.form = ""
        bound = context.bind(node)
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
                    self._add(context, value)
            else:
                self._add(context, value)
        if optional and not all(optional.values()):
            self.form = ",".join(name for name, given in optional.items() if given)

    def _add(self, context: Context, value: Any) -> None:
        fake = context.fake(value)
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


def pointwise(context: Context, node: Node) -> Tensor:
    """An overload that the op table has a row for."""
    name = str(node.target)
    operands = _Operands(context, node)
    rows = context.table.rows(name, operands.form)
    if not rows:
        raise Unsupported(f"no rule for the form {operands.form or 'without optional arguments'}")
    if name.startswith("aten.rsub.") and context.fake(node.args[0]).dtype == torch.bool:
        raise Unsupported("eager refuses to subtract a bool")
    expected = DTYPES[node.meta["val"].dtype]
    for row in rows:
        if row.arity != len(operands.values):
            raise Unsupported(f"{len(operands.values)} operands, the rule has {row.arity}")
        for computed, result in _promotions(row, operands):
            if result == expected and (computed in row.domain or row.rule == "logical"):
                return apply_row(context, row, operands.values, computed, result)
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
            computed, result = dispatch.promote(row.rule, values)
            if computed in DTYPES and result in DTYPES:
                found.append((DTYPES[computed], DTYPES[result]))
    return found


def apply_row(
    context: Context, row: Row, values: Sequence[Any], computed: str, result: str
) -> Tensor:
    """One pointwise node with its operands cast to `computed`, and the result to `result`."""
    wide = row.op in _WIDE_NUMBERS
    rounded = _rounding_dtype(row, values, context, computed, result)
    operands = []
    for place, value in enumerate(values):
        if row.rule == "select" and place == 0:
            operands.append(context.cast(context.tensor(value), "bool"))
        else:
            operands.append(operand(context, value, computed, computed if wide else rounded))
    node_result = "bool" if row.rule in ("compare", "test", "logical") else computed
    tensor = context.pointwise(row.op, *operands, dtype=node_result)
    return context.cast(tensor, result)


def _rounding_dtype(
    row: Row, values: Sequence[Any], context: Context, computed: str, result: str
) -> str:
    """The dtype that numbers are rounded to before they are widened to `computed`."""
    if computed != "f32":
        return computed
    if row.rule != "compare":
        return result if result in OPMATH else computed
    fakes = [context.fake(value) for value in values]
    dtypes = {
        DTYPES[fake.dtype] for fake in fakes if isinstance(fake, torch.Tensor) and fake.dim() > 0
    }
    narrow = dtypes & set(OPMATH)
    return narrow.pop() if len(narrow) == 1 and not dtypes & {"f32", "f64"} else computed


def operand(context: Context, value: Any, computed: str, rounded: str | None = None) -> Tensor:
    """A tensor or number in dtype `computed`; numbers and 0-d tensors go through `rounded` on the way."""
    rounded = rounded or computed
    fake = context.fake(value)
    if isinstance(fake, torch.Tensor):
        tensor = context.tensor(value)
        if fake.dim() == 0 and rounded != computed:
            tensor = context.cast(tensor, rounded)
        return context.cast(tensor, computed)
    if isinstance(fake, torch.SymInt | torch.SymFloat):
        return context.cast(context.number(value, rounded), computed)
    return context.number(round_number(fake, rounded) if rounded != computed else fake, computed)


def round_number(number: Any, dtype: str) -> Any:
    """A Python number rounded to a float dtype; unchanged for other dtypes."""
    if dtype in ("f16", "bf16", "f32"):
        return torch.tensor(number, dtype=_TORCH_DTYPES[dtype], device="cpu").item()
    return number


def symbolic_float(context: Context, value: Any) -> Tensor:
    """A SymFloat as a 0-d f64 tensor; Unsupported where its expression has no counterpart."""
    if symints.sym_name(value) not in context.numbers:
        context.sizes.declare(value)
    return _float_expression(context, symints.sym_expr(value))


def _float_expression(context: Context, e: Any) -> Tensor:
    kind = type(e).__name__
    if e.is_Number:
        return context.number(float(e), "f64")
    if str(e) in context.numbers:
        return context.numbers[str(e)]
    if e.is_integer:
        handle = context.builder.size_value(context.sizes.expression(e))
        return context.cast(Tensor(handle, "i64"), "f64")
    if kind in ("ToFloat", "TruncToFloat", "Identity"):
        return _float_expression(context, e.args[0])
    if kind == "FloatPow" and e.args[1] == -0.5:
        return context.pointwise("rsqrt", _float_expression(context, e.args[0]))
    if (kind == "FloatPow" and e.args[1] == 0.5) or kind == "OpaqueUnaryFn_sqrt":
        return context.pointwise("sqrt", _float_expression(context, e.args[0]))
    if kind == "Abs":
        return context.pointwise("abs", _float_expression(context, e.args[0]))
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
    parts = [_float_expression(context, argument) for argument in e.args]
    result = parts[0]
    for part in parts[1:]:
        result = context.pointwise(op[kind], result, part)
    return result


def multiply_add(context: Context, node: Node) -> Tensor:
    """prims.fma(a, b, c), which torch computes by a multiplication and an addition, each rounded to its dtype."""
    a, b, c = node.args
    _, product = dispatch.promote("default", [context.fake(a), context.fake(b)])
    factors = DTYPES[product]
    x = _in_opmath(context, "and" if factors == "bool" else "mul", [a, b], factors)
    total = DTYPES[node.meta["val"].dtype]
    wide = OPMATH.get(total, total)
    op = "or" if total == "bool" else "add"
    x = context.pointwise(op, context.cast(x, wide), operand(context, c, wide))
    return context.cast(x, total)


def _in_opmath(context: Context, op: str, values: Sequence[Any], dtype: str) -> Tensor:
    """A pointwise op of tensors and numbers, computed as eager computes `dtype` and rounded to it."""
    wide = OPMATH.get(dtype, dtype)
    operands = [operand(context, value, wide) for value in values]
    return context.cast(context.pointwise(op, *operands), dtype)


def hardtanh(context: Context, node: Node) -> Tensor:
    """hardtanh, whose limits are cut to integers beside tensors of integers."""
    bound = context.bind(node)
    x = context.tensor(bound["self"])
    limits = [bound["min_val"], bound["max_val"]]
    if x.dtype in FLOATS:
        return pointwise(context, node)
    if not all(isinstance(limit, int | float) for limit in limits):
        raise Unsupported("a limit is no constant")
    numbers = [operand(context, int(limit), x.dtype) for limit in limits]
    return context.pointwise("clamp", x, *numbers)


def power(context: Context, node: Node) -> Tensor:
    """pow with a number as exponent; eager computes 2, 3, 0.5, -0.5, -1, -2, 0, 1 and integers' powers without pow."""
    bound = context.bind(node)
    base, exponent = bound["self"], bound["exponent"]
    if not isinstance(exponent, int | float):
        raise Unsupported("exponent is no constant")
    computed, result = dispatch.promote("default", [context.fake(base), exponent])
    dtype = DTYPES.get(computed, "")
    is_integer = dtype in LIMITS and isinstance(exponent, int) and 0 < exponent < 64
    if (
        dtype not in ("f32", "f64")
        and not is_integer
        and (exponent not in (1, 2, 3) or dtype == "bool")
    ):
        raise Unsupported(f"exponent {exponent} of {dtype or computed}")
    x = operand(context, base, dtype)
    if is_integer:
        return context.cast(_integer_power(context, x, int(exponent)), DTYPES[result])
    exponent = round_number(exponent, DTYPES[result])
    return context.cast(_power(context, x, exponent, node), DTYPES[result])


def _integer_power(context: Context, x: Tensor, exponent: int) -> Tensor:
    """By squaring: integers wrap around, whatever the order."""
    if exponent == 1:
        return context.copy(x)
    root = _integer_power(context, x, exponent // 2) if exponent > 3 else x
    square = context.pointwise("square", root)
    return context.pointwise("mul", square, x) if exponent % 2 else square


def _power(context: Context, x: Tensor, exponent: float, node: Node) -> Tensor:
    if exponent == 0:
        fake = node.meta["val"]
        return Tensor(context.full(context.shape(fake), x.dtype, 1, device_of(fake)), x.dtype)
    if exponent == 1:
        return context.copy(x)
    if exponent == 3:
        return context.pointwise("mul", context.pointwise("square", x), x)
    if exponent == -2:
        return context.pointwise("reciprocal", context.pointwise("square", x))
    op = {2: "square", 0.5: "sqrt", -0.5: "rsqrt", -1: "reciprocal"}.get(exponent)
    fake = node.meta["val"]
    # Of -inf these are not what sqrt gives; eager's kernel for float16 on CPUs alone computes them so.
    is_pow_of_half = fake.dtype == torch.float16 and fake.device.type == "cpu"
    if op is None or (is_pow_of_half and abs(exponent) == 0.5):
        return context.pointwise("pow", x, context.number(exponent, x.dtype))
    return context.pointwise(op, x)


def nan_to_num(context: Context, node: Node) -> Tensor:
    """nan_to_num of floats; the defaults are the dtype's extremes."""
    bound = context.bind(node)
    x = context.tensor(bound["self"])
    if x.dtype not in FLOATS:
        return context.copy(x)
    limits = torch.finfo(_TORCH_DTYPES[x.dtype])
    defaults = {"nan": 0.0, "posinf": limits.max, "neginf": limits.min}
    computed = OPMATH.get(x.dtype, x.dtype)
    numbers = [
        default if bound[name] is None else bound[name] for name, default in defaults.items()
    ]
    operands = [operand(context, number, computed, x.dtype) for number in numbers]
    return context.cast(
        context.pointwise("nan_to_num", context.cast(x, computed), *operands), x.dtype
    )


def nan_or_infinity(context: Context, node: Node) -> Tensor:
    """isnan, isinf, isposinf and isneginf: the op table for floats, False for the rest."""
    x = context.tensor(node.args[0])
    return pointwise(context, node) if x.dtype in FLOATS else _false(context, node)


def signbit(context: Context, node: Node) -> Tensor:
    """signbit: the op table for numbers, False for truth values."""
    is_bool = context.tensor(node.args[0]).dtype == "bool"
    return _false(context, node) if is_bool else pointwise(context, node)


def _false(context: Context, node: Node) -> Tensor:
    fake = node.meta["val"]
    return Tensor(context.full(context.shape(fake), "bool", 0, device_of(fake)), "bool")


# -- casts and copies


def to_copy(context: Context, node: Node) -> Tensor:
    """_to_copy: a cast, or a copy where the dtype stays. vmap's traces have it of numbers too."""
    bound = context.bind(node)
    if isinstance(bound["self"], bool | int | float):
        target = node.meta["val"]
        return context.number(bound["self"], DTYPES[target.dtype], device_of(target))
    x = context.tensor(bound["self"])
    if bound["layout"] not in (None, torch.strided) or bound["pin_memory"]:
        raise Unsupported("layout or pinned memory")
    source, target = device_of(context.fake(bound["self"])), device_of(node.meta["val"])
    if source != target:
        raise Unsupported(f"copy from {source} to {target}")
    dtype = DTYPES[node.meta["val"].dtype]
    return context.copy(x) if x.dtype == dtype else context.cast(x, dtype)


def convert_element_type(context: Context, node: Node) -> Tensor:
    """prims.convert_element_type, which is a view of its operand's values where the dtype stays."""
    x = context.tensor(node.args[0])
    dtype = DTYPES[node.meta["val"].dtype]
    return context.copy(x) if x.dtype == dtype else context.cast(x, dtype)


def copy_of_first(context: Context, node: Node) -> Tensor:
    """A fresh tensor of the first argument's elements."""
    return context.copy(context.tensor(node.args[0]))


def first_argument(context: Context, node: Node) -> Tensor:
    """alias and its kin: the very tensor."""
    return context.tensor(node.args[0])


def copy_from(context: Context, node: Node) -> Tensor:
    """copy(self, src): src broadcast to self's shape, in self's dtype."""
    bound = context.bind(node)
    dtype = context.tensor(bound["self"]).dtype
    source = context.tensor(bound["src"])
    shape = context.shape(context.fake(bound["src"]))
    x = context.broadcast(context.cast(source, dtype), shape, context.shape(node.meta["val"]))
    return context.copy(x)
