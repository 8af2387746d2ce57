"""`torch.compile(..., mode=...)`: torch's names, and what they mean here."""

from __future__ import annotations

import difflib
import warnings

from mlcc._errors import Error
from mlcc.capture import eager_fallback

_MEASURES = (
    "mlcc runs both kernels where its cost model is in doubt (option measure) and tries no more"
)

# What is true here of each mode, none of which changes anything. None and "default" are the same.
MODES = {
    "default": "",
    "reduce-overhead": "each graph is one call of the compiled core; no CUDA graphs are recorded",
    "max-autotune": _MEASURES,
    "max-autotune-no-cudagraphs": _MEASURES,
}

_told: set[str] = set()


def check_mode(mode: str | None) -> str | None:
    """The mode, None for the default one; a warning, once, that it changes nothing. Error for a name of none."""
    if mode is None or mode == "default":
        return None
    if mode not in MODES:
        (nearest,) = difflib.get_close_matches(str(mode), MODES, n=1, cutoff=0.0)
        raise Error(f"mode {mode}: expected one of {', '.join(MODES)}; nearest: {nearest}")
    if mode not in _told:
        _told.add(mode)
        text = f"mode={mode!r} changes nothing under backend='mlcc': {MODES[mode]}"
        warnings.warn_explicit(text, UserWarning, *(eager_fallback.calling_line() or ("", 0)))
    return mode


def forget() -> None:
    """Tell anew of each mode."""
    _told.clear()
