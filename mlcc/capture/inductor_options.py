"""`torch.compile(..., options=...)` of programs that were written for Inductor, which know nothing of mlcc."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

from mlcc import config
from mlcc.capture import eager_fallback
from mlcc.torch_private import default_backend, inductor

_told: set[str] = set()


def without_foreign(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options but for those that are Inductor's alone, where mlcc was made the default backend (MLCC_AUTO).

    A warning, once for each of them. All stay where the program itself asked for mlcc: then they are errors.
    """
    given = dict(options or {})
    if not given or not default_backend.is_wanted():
        return given
    known = config.table()
    foreign = [name for name in given if name not in known and inductor.is_option(name)]
    new = [name for name in foreign if name not in _told]
    if new:
        _told.update(new)
        text = f"options of Inductor that change nothing under mlcc: {', '.join(new)}"
        warnings.warn_explicit(text, UserWarning, *(eager_fallback.calling_line() or ("", 0)))
    return {name: value for name, value in given.items() if name not in foreign}


def forget() -> None:
    """Tell anew of each option."""
    _told.clear()
