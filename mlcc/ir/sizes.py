"""torch's symbolic sizes as text that the graph IR reads: "s0*2 + floordiv(s1, 4)".

Symbols are renamed in order of first appearance (s0, s1, ...; u0, ... for those without a value when tracing), so
that one graph always prints the same text. Nothing here evaluates a SymInt: that would add a guard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from mlcc.torch_private import symints

Size = int | str  # an integer, or the text of a symbolic expression

_MAX_POWER = 8
_MAX_DENOMINATOR = 1000


class UnsupportedSize(Exception):  # noqa: N818 (an answer, not an error)
    """A size that the graph IR cannot express; the text says which."""


class SizePrinter:
    """Prints sizes of one graph. `declare(name, facts)` is called once for each symbol, when it first appears."""

    def __init__(self, declare: Callable[[str, symints.SymbolFacts], None]) -> None:
        self._declare = declare
        self._names: dict[str, str] = {}
        self._counts: dict[str, int] = {}
        self._facts: dict[str, symints.SymbolFacts] = {}

    def size(self, value: Any) -> Size:
        """An int, or the text of a SymInt (or of a SymBool: 1 for true, 0 for false)."""
        if isinstance(value, bool | int):
            return int(value)
        self.declare(value)
        expression = symints.sym_expr_by_divisors(value)
        if expression.is_Integer:
            return int(expression)
        # torch leaves the expression as it is where a guard says that it is 1, and that dimensions broadcast.
        return 1 if symints.is_one(value) else self.expression(expression)

    def declare(self, value: Any) -> None:
        """Names the symbols inside a SymInt, SymFloat or SymBool."""
        for facts in symints.symbol_facts(value):
            self._add(facts)

    def knows(self, name: str) -> bool:
        """Whether the symbol of this name of torch's was declared."""
        return name in self._names

    def named(self, facts: symints.SymbolFacts) -> str:
        """The text of one symbol."""
        self._add(facts)
        return self._names[facts.name]

    def truth(self, expression: Any) -> str:
        """The text of a relation of sympy over sizes that were inputs of the trace: 1 where it holds, else 0."""
        for symbol in sorted(expression.free_symbols, key=str):
            if not symbol.is_integer:
                raise UnsupportedSize(f"{symbol} is no integer")
            self._add(symints.SymbolFacts(str(symbol.name), None, None, 0))
        return self.expression(expression)

    def sizes(self, values: Sequence[Any]) -> list[Size]:
        """A shape or strides."""
        return [self.size(value) for value in values]

    def _add(self, facts: symints.SymbolFacts) -> None:
        if facts.name in self._names:
            return
        letter = "u" if facts.hint is None else "s"
        number = self._counts.get(letter, 0)
        self._counts[letter] = number + 1
        name = f"{letter}{number}"
        self._names[facts.name] = name
        self._facts[facts.name] = facts
        self._declare(name, facts)

    def expression(self, e: Any) -> str:
        """The text of a sympy expression whose symbols were seen in `size` before."""
        if e.is_Integer:
            if not -(2**63) < int(e) < 2**63:
                raise UnsupportedSize(f"size {e}: more than 64 bits")
            return str(int(e))
        if e.is_Symbol:
            return self._symbol(e)
        kind = type(e).__name__
        printer = _PRINTERS.get(kind)
        if printer is None:
            raise UnsupportedSize(f"size {e}: {kind} has no counterpart")
        return printer(self, e)

    def _symbol(self, e: Any) -> str:
        if str(e.name) not in self._names:
            raise UnsupportedSize(f"size {e}: unknown symbol")
        return self._names[str(e.name)]

    def _arguments(self, e: Any) -> list[str]:
        return [self.expression(argument) for argument in e.args]

    def _sum(self, e: Any) -> str:
        return " + ".join(f"({text})" for text in self._arguments(e))

    def _product(self, e: Any) -> str:
        return "*".join(f"({text})" for text in self._arguments(e))

    def _power(self, e: Any) -> str:
        base, exponent = e.args
        if not exponent.is_Integer or not 1 <= int(exponent) <= _MAX_POWER:
            raise UnsupportedSize(f"size {e}: exponent is not a small positive integer")
        return "*".join([f"({self.expression(base)})"] * int(exponent))

    def _division(self, e: Any) -> str:
        a, b = e.args
        self._check_divisor(b, e)
        return f"floordiv({self.expression(a)}, {self.expression(b)})"

    def _ceil_division(self, e: Any) -> str:
        a, b = e.args
        self._check_divisor(b, e)
        divisor = self.expression(b)
        return f"floordiv({self.expression(a)} + ({divisor}) - 1, {divisor})"

    def _modulo(self, e: Any) -> str:
        a, b = e.args
        self._check_divisor(b, e)
        return f"mod({self.expression(a)}, {self.expression(b)})"

    def _modular_indexing(self, e: Any) -> str:
        a, b, c = e.args
        self._check_divisor(b, e)
        self._check_divisor(c, e)
        return f"mod(floordiv({self.expression(a)}, {self.expression(b)}), {self.expression(c)})"

    def _round_down(self, e: Any) -> str:
        return self._scaled(e) if e.args[0].is_Mul else self._rounded_quotient(e, "floor")

    def _round_up(self, e: Any) -> str:
        return self._rounded_quotient(e, "ceil")

    def _truncated(self, e: Any) -> str:
        (inside,) = e.args
        if type(inside).__name__ == "IntTrueDiv" and inside.args[0].is_nonnegative:
            return self._division(inside)
        return self._scaled(e)

    def _scaled(self, e: Any) -> str:
        """A float times a size, rounded down (towards zero is the same): 1.7*s0 is floordiv(s0*17, 10)."""
        factors = {type(factor).__name__: factor for factor in e.args[0].args}
        if not e.args[0].is_Mul or set(factors) != {"Float", "ToFloat"}:
            raise UnsupportedSize(f"size {e}: {type(e).__name__} of what is no size times a number")
        (size,) = factors["ToFloat"].args
        ratio = ratio_that_rounds_alike(float(factors["Float"]))
        if ratio is None or not size.is_nonnegative:
            raise UnsupportedSize(
                f"size {e}: no ratio of small integers gives the same for all sizes"
            )
        return f"floordiv(({self.expression(size)})*{ratio.numerator}, {ratio.denominator})"

    def _rounded_quotient(self, e: Any, direction: str) -> str:
        (quotient,) = e.args
        if type(quotient).__name__ != "IntTrueDiv":
            raise UnsupportedSize(f"size {e}: rounds what is no quotient of integers")
        return self._ceil_division(quotient) if direction == "ceil" else self._division(quotient)

    def _extreme(self, e: Any, name: str) -> str:
        texts = sorted(self._arguments(e))
        text = texts[0]
        for other in texts[1:]:
            text = f"{name}({text}, {other})"
        return text

    def _absolute(self, e: Any) -> str:
        (text,) = self._arguments(e)
        return f"max({text}, 0 - ({text}))"

    def _max(self, e: Any) -> str:
        return self._extreme(e, "max")

    def _min(self, e: Any) -> str:
        return self._extreme(e, "min")

    def _identity(self, e: Any) -> str:
        return self.expression(e.args[0])

    # Truth values as 0 or 1. Operands are integers, so a < b is a <= b - 1.
    def _at_least(self, a: str, b: str) -> str:
        return f"max(0, min(1, {a} - ({b}) + 1))"

    def _ge(self, e: Any) -> str:
        a, b = self._arguments(e)
        return self._at_least(a, b)

    def _gt(self, e: Any) -> str:
        a, b = self._arguments(e)
        return self._at_least(a, f"{b} + 1")

    def _le(self, e: Any) -> str:
        a, b = self._arguments(e)
        return self._at_least(b, a)

    def _lt(self, e: Any) -> str:
        a, b = self._arguments(e)
        return self._at_least(b, f"{a} + 1")

    def _ne(self, e: Any) -> str:
        a, b = self._arguments(e)
        return f"min(1, max({a} - ({b}), {b} - ({a})))"

    def _eq(self, e: Any) -> str:
        return f"1 - {self._ne(e)}"

    def _and(self, e: Any) -> str:
        return self._product(e)

    def _or(self, e: Any) -> str:
        return self._extreme(e, "max")

    def _not(self, e: Any) -> str:
        return f"1 - ({self.expression(e.args[0])})"

    def _true(self, e: Any) -> str:
        del e
        return "1"

    def _false(self, e: Any) -> str:
        del e
        return "0"

    def _check_divisor(self, b: Any, e: Any) -> None:
        if b.is_positive or getattr(b, "is_nonnegative", False):  # relations have no sign
            return
        low = symints.lower_bound(b, self._facts)
        if low is None or low < 0:
            raise UnsupportedSize(f"size {e}: divisor {b} may be negative")


def ratio_that_rounds_alike(number: float) -> Fraction | None:
    """A ratio r with floor(r*n) == int(number*n) for all n up to 2**40, whose product is rounded to a double.

    Both round alike where r*n is no integer: it is then further from one than the product's error. Where it is one, the
    product must not fall below it, not even by half the distance of doubles there: 2**-54 of it or more.
    """
    ratio = Fraction(number).limit_denominator(_MAX_DENOMINATOR)
    if number <= 0 or ratio.numerator > _MAX_DENOMINATOR:
        return None
    short_by = (ratio - Fraction(number)) / ratio
    return ratio if -Fraction(1, 2**52) < short_by < Fraction(1, 2**54) else None


# By class name, since torch's own classes of integer functions moved between releases.
_PRINTERS: dict[str, Callable[[SizePrinter, Any], str]] = {
    "Add": SizePrinter._sum,
    "Mul": SizePrinter._product,
    "Pow": SizePrinter._power,
    "PowByNatural": SizePrinter._power,
    "FloorDiv": SizePrinter._division,
    "CleanDiv": SizePrinter._division,
    "CeilDiv": SizePrinter._ceil_division,
    "Mod": SizePrinter._modulo,
    "PythonMod": SizePrinter._modulo,
    "ModularIndexing": SizePrinter._modular_indexing,
    "FloorToInt": SizePrinter._round_down,
    "TruncToInt": SizePrinter._truncated,
    "CeilToInt": SizePrinter._round_up,
    "Max": SizePrinter._max,
    "Min": SizePrinter._min,
    "Abs": SizePrinter._absolute,
    "Identity": SizePrinter._identity,
    "GreaterThan": SizePrinter._ge,
    "StrictGreaterThan": SizePrinter._gt,
    "LessThan": SizePrinter._le,
    "StrictLessThan": SizePrinter._lt,
    "Equality": SizePrinter._eq,
    "Unequality": SizePrinter._ne,
    "And": SizePrinter._and,
    "Or": SizePrinter._or,
    "Not": SizePrinter._not,
    "BooleanTrue": SizePrinter._true,
    "BooleanFalse": SizePrinter._false,
}
