"""Which cases are for each run."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def cases(all_of_them: Iterable[Any], quick: Collection[Any]) -> list[Any]:
    """Cases for `parametrize`; those that are not quick are marked as slow."""
    return [
        pytest.param(
            *(one if isinstance(one, tuple) else (one,)),
            marks=[] if one in quick else pytest.mark.slow,
        )
        for one in all_of_them
    ]
