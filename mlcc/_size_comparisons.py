"""Comparisons of sizes that are decided while a function is traced.

`x.shape[1] > 1` is a SymBool there, which torch's own functions refuse as an argument (`is_causal=x.shape[1] > 1`)
before any mode of torch sees the call.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch

_COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__")
_FOLDERS = tuple(
    os.path.dirname(os.path.abspath(file)) + os.sep for file in (torch.__file__, __file__)
)
_lock = threading.RLock()  # one thread at a time changes the class


def needs_decision(error: Exception) -> bool:
    """Whether a trace failed since a function of torch takes a bool and got the comparison of a size."""
    return isinstance(error, TypeError) and "not SymBool" in str(error)


@contextlib.contextmanager
def decided() -> Iterator[None]:
    """Inside, comparisons that this thread's code makes outside of torch are bools, for which the trace gets guards."""
    with _lock:
        originals = {name: getattr(torch.SymInt, name) for name in _COMPARISONS}
        for name, original in originals.items():
            setattr(torch.SymInt, name, _deciding(original, threading.get_ident()))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(torch.SymInt, name, original)


def _deciding(original: Callable[[Any, Any], Any], thread: int) -> Callable[[Any, Any], Any]:
    def compare(size: Any, other: Any) -> Any:
        result = original(size, other)
        if not isinstance(result, torch.SymBool) or threading.get_ident() != thread:
            return result
        if not result.node.has_hint():  # of a size that data tell
            return result
        caller = sys._getframe(1).f_code.co_filename
        return result if os.path.abspath(caller).startswith(_FOLDERS) else bool(result)

    return compare
