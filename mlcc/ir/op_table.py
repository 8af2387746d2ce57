"""The pointwise part of the op table (csrc/graph/ops.def) by aten overload."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mlcc.ir.types import FLOATS, LIMITS

_INTEGERS = frozenset(LIMITS)
_DOMAINS: dict[str, frozenset[str]] = {
    "any": FLOATS | _INTEGERS | {"bool"},
    "number": FLOATS | _INTEGERS,
    "float": FLOATS,
    "integer": _INTEGERS,
    "integral": _INTEGERS | {"bool"},
    "bool": frozenset({"bool"}),
}

# Second names of ops that reach us nevertheless, from code that runs while torch traces with symbolic sizes.
_ALIASES = {
    "aten.true_divide.Tensor": "aten.div.Tensor",
    "aten.true_divide.Scalar": "aten.div.Scalar",
}


@dataclass(frozen=True)
class Row:
    """A pointwise op that an overload may become."""

    op: str
    arity: int
    rule: str  # how operand dtypes lead to the dtype it is computed in; see dispatch.promote
    domain: frozenset[str]  # dtypes that it may be computed in


class OpTable:
    """Aten overload and form -> rows, in order of preference.

    `rows` holds (op, arity, rule, domain, aten) for each pointwise op; `aten` lists overloads separated by spaces, each
    with its form in brackets where it has one ("aten.gelu.default[tanh]").
    """

    def __init__(self, rows: Iterable[tuple[str, int, str, str, str]]) -> None:
        self._rows: dict[str, list[Row]] = {}
        self._overloads: set[str] = set()
        for op, arity, rule, domain, aten in rows:
            row = Row(op, arity, rule, _DOMAINS[domain])
            for form in aten.split():
                self._rows.setdefault(form, []).append(row)
                self._overloads.add(form.split("[")[0])

    def knows(self, overload: str) -> bool:
        """Whether some form of the overload ("aten.add.Tensor") has a row."""
        return _ALIASES.get(overload, overload) in self._overloads

    def rows(self, overload: str, form: str = "") -> list[Row]:
        """The rows of one form ("" for the schema's default)."""
        overload = _ALIASES.get(overload, overload)
        return self._rows.get(f"{overload}[{form}]" if form else overload, [])

    def overloads(self) -> set[str]:
        """All overloads with a row."""
        return set(self._overloads)
