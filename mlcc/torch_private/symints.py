"""torch's symbolic sizes: what is known of them, as expressions of sympy. Touches private interfaces of torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class SymbolFacts:
    """What torch knows about one size symbol. `low` and `high` are None where unbounded."""

    name: str
    low: int | None
    high: int | None
    hint: int | None


def is_known(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds by what the trace has assumed so far; asking adds no guard."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if statically_known_true(condition):
        return True
    return isinstance(condition, torch.SymBool) and _follows_from_divisors(condition)


def _follows_from_divisors(condition: torch.SymBool) -> bool:
    """Whether a condition holds for multiples of what the trace has found sizes to be divisible by.

    ShapeEnv keeps such guards, but compares s with 2 * (s // 2) as if it did not know them.
    """
    import sympy

    env = condition.node.shape_env
    multiples = _multiples(env)
    return bool(multiples) and env.replace(condition.node.expr).subs(multiples) == sympy.true


def _multiples(env: Any) -> dict[Any, Any]:
    """Sizes of which a guard says that a number divides them, each as a product with its quotient."""
    import sympy
    from torch.utils._sympy.functions import Mod

    multiples = {}
    for remainder in env.divisible:
        if not isinstance(remainder, Mod):
            continue
        dividend, divisor = (env.replace(argument) for argument in remainder.args)
        is_positive = all(s.is_positive for s in dividend.free_symbols | divisor.free_symbols)
        size, divisor = (dividend / divisor).as_numer_denom()  # a common factor is no zero
        if is_positive and isinstance(size, sympy.Symbol) and divisor.is_Integer:
            quotient = sympy.Symbol(f"{size.name}_quotient", positive=True, integer=True)
            multiples[size] = divisor * quotient
    return multiples


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements of a fake tensor lie without gaps and apart from each other; asking adds no guard."""
    from torch._prims_common import is_non_overlapping_and_dense_or_false

    return bool(is_non_overlapping_and_dense_or_false(tensor))


def has_symbols(tensor: torch.Tensor) -> bool:
    """Whether sizes or strides of a fake tensor are symbolic."""
    return any(isinstance(number, torch.SymInt) for number in (*tensor.shape, *tensor.stride()))


def is_one(size: torch.SymInt | torch.SymBool) -> bool:
    """Whether a guard of the trace says that a size is 1; asking adds none."""
    is_size = isinstance(size, torch.SymInt)
    return is_size and size.node.has_hint() and size.node.hint == 1 and is_known(size == 1)


def sym_expr(size: Any) -> Any:
    """The sympy expression of a SymInt, SymFloat or SymBool, with torch's replacements applied; adds no guard."""
    return size.node.expr


def has_expression(size: torch.SymInt) -> bool:
    """Whether it is a size of a trace: lengths in a nested tensor are told by no expression."""
    return hasattr(size.node, "expr")


def symbol_of(size: Any) -> tuple[str, int] | None:
    """The name of a size that is one symbol, and its value when tracing; None of anything else. Adds no guard."""
    if not isinstance(size, torch.SymInt) or not has_expression(size) or not is_atom(size):
        return None
    hint = size.node.hint
    return (sym_name(size), hint) if type(hint) is int else None


def as_expression(size: int | torch.SymInt) -> Any:
    """The expression of sympy of a size that may be a plain int."""
    import sympy

    return sym_expr(size) if isinstance(size, torch.SymInt) else sympy.Integer(size)


def is_atom(size: Any) -> bool:
    """Whether a SymInt or SymFloat is one symbol or a number, not computed from others."""
    return bool(sym_expr(size).is_Atom)


def guarded_value(size: Any) -> Any:
    """The int or float that a SymInt or SymFloat is in the trace, which gets a guard for it."""
    node = size.node
    return node.guard_int("", 0) if isinstance(size, torch.SymInt) else node.guard_float("", 0)


def sym_expr_by_divisors(size: torch.SymInt | torch.SymBool) -> Any:
    """The same, without the divisions of which guards say that nothing is left over: s // (s // 4) is 4 then."""
    expression = sym_expr(size)
    has_divisors = isinstance(size, torch.SymInt) and size.node.shape_env.divisible
    if not has_divisors or expression.is_Atom or expression.is_polynomial():
        return expression
    multiples = _multiples(size.node.shape_env)
    by_quotients = expression.subs(multiples)
    if not multiples or not by_quotients.is_polynomial():
        return expression
    quotients = {product.args[1]: symbol / product.args[0] for symbol, product in multiples.items()}
    whole = by_quotients.subs(quotients).expand()
    coefficients = whole.as_coefficients_dict().values()
    return whole if all(number.is_Integer for number in coefficients) else expression


def sym_name(number: Any) -> str:
    """The name of the symbol that a SymInt or SymFloat is; of its expression where it is more than a symbol."""
    return str(sym_expr(number))


def symbol_facts(size: Any) -> list[SymbolFacts]:
    """Facts about each symbol inside a SymInt, by name; adds no guard."""
    shape_env = size.node.shape_env
    symbols = sorted(sym_expr(size).free_symbols, key=lambda symbol: str(symbol.name))
    return [_facts(symbol, shape_env) for symbol in symbols]


def is_ragged(size: Any) -> bool:
    """Whether a SymInt stands for the lengths in a nested tensor: no number has its value."""
    known = _known_values(size.node.shape_env)
    return any(
        type(known.get(symbol)).__name__ == "SingletonInt" for symbol in sym_expr(size).free_symbols
    )


def _known_values(shape_env: Any) -> Mapping[Any, Any]:
    """The values of symbols that have one when tracing; torch renamed the attribute."""
    name = "backed_var_to_val" if hasattr(shape_env, "backed_var_to_val") else "var_to_val"
    return getattr(shape_env, name, {})


def lower_bound(expression: Any, facts: Mapping[str, SymbolFacts]) -> int | None:
    """The least value of an expression of sympy by the ranges of its symbols; None where it has no bound."""
    from torch.utils._sympy.numbers import int_oo
    from torch.utils._sympy.value_ranges import ValueRanges, bound_sympy

    def range_of(symbol: Any) -> Any:
        known = facts.get(str(symbol.name))
        low = -int_oo if known is None or known.low is None else known.low
        high = int_oo if known is None or known.high is None else known.high
        return ValueRanges(low, high)

    ranges = {symbol: range_of(symbol) for symbol in expression.free_symbols}
    return bound(bound_sympy(expression, ranges).lower)


def follows_from_inputs(number: Any) -> bool:
    """Whether a result is an int, or a SymInt of nothing but symbols that have a value when tracing."""
    if isinstance(number, torch.SymInt):
        return all(facts.hint is not None for facts in symbol_facts(number))
    return isinstance(number, int) and not isinstance(number, bool)


def hint_of(size: Any) -> int:
    """The value of a size that follows from the inputs when tracing; adds no guard."""
    return int(size.node.hint) if isinstance(size, torch.SymInt) else size


def fix_size(size: Any) -> None:
    """Adds a guard for the value of a size that follows from the inputs, so that it is a number from here on.

    Unless it is one, or the user declared it to be dynamic (`mark_dynamic`), where torch refuses such a guard.
    """
    if isinstance(size, torch.SymInt) and not _is_declared_dynamic(size):
        int(size)  # asking adds the guard


def _is_declared_dynamic(size: torch.SymInt) -> bool:
    symbols = sym_expr(size).free_symbols
    for tracked in size.node.shape_env.tracked_fakes or ():
        constraints = getattr(tracked.symbolic_context, "constraint_sizes", ())
        if not isinstance(tracked.fake, torch.Tensor):
            continue
        for extent, constraint in zip(tracked.fake.shape, constraints, strict=False):
            if constraint is None or constraint.warn_only or not isinstance(extent, torch.SymInt):
                continue
            if symbols & sym_expr(extent).free_symbols:
                return True
    return False


def _facts(symbol: Any, shape_env: Any) -> SymbolFacts:
    low = high = hint = None
    value_range = getattr(shape_env, "var_to_range", {}).get(symbol)
    if value_range is not None:
        low, high = bound(value_range.lower), bound(value_range.upper)
    value = _known_values(shape_env).get(symbol)
    if value is not None and getattr(value, "is_Integer", False):
        hint = int(value)
    return SymbolFacts(str(symbol.name), low, high, hint)


def bound(value: Any) -> int | None:
    """An end of a range as an int; None where it has none."""
    # int_oo and sympy's infinities are no Integer
    return int(value) if getattr(value, "is_Integer", False) else None
