"""What runs eagerly as a whole: a line in the log `fallback`, and once per reason a warning with the user's line."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from collections.abc import Callable
from types import FrameType
from typing import Any

from mlcc import config
from mlcc._errors import EagerFallbackWarning
from mlcc._load import BUILD_HINT
from mlcc.capture.code_owners import is_user_code
from mlcc.logging import get_logger

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

# What the reason of a graph or of a call of one says -> what to do: the first that fits.
_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"code generator", BUILD_HINT),
    (r"layout|sparse", "pass dense tensors (x.to_dense()), or call what reads this one outside"),
    (r"nested", "pass padded tensors, or call what reads the nested ones outside"),
    (r"quantized", "dequantize outside of the compiled function"),
    (r"no kernels for", "`python -m mlcc doctor` tells what of the GPU's software is missing"),
    (r"CUDA_ERROR", "`python -m mlcc doctor` looks at the GPU's driver"),
    (r"emulated GPU", "unset the option gpu (MLCC_GPU), or pass tensors of the CPU alone"),
    (r"devices? ", "keep each compiled function to tensors of the CPU or of one GPU"),
    (r"overlap|share|views? of", "pass a copy (x.clone()) of one of those that share memory"),
    (r"64 bits", "pass smaller integers, or a tensor that holds them"),
    (r"forward-mode", "call it outside of the transform or mode, or compile around"),
)
_ANY_REMEDY = "leave what is named outside of the compiled function (torch.compiler.disable)"

_warned: set[str] = set()


def tell(
    what: str, reason: Any, *, place: tuple[str, int] | None = None, is_loss: bool = True
) -> None:
    """Say that a graph or a call of one runs eagerly; a warning if the reason is a new one and `is_loss`."""
    text = str(reason)
    warns = is_loss and text not in _warned and not config.disable
    if warns:
        _warned.add(text)
    say(what, text, remedy, place=place, warns=warns)


def say(
    what: str,
    reason: str,
    cure: Callable[[str], str],
    *,
    place: tuple[str, int] | None = None,
    warns: bool = True,
) -> None:
    """Log that `what` ("forward graph") runs eagerly, and warn of it unless the option `disable` asks for it.

    `cure` tells what to do about a reason; '' where the reason says it. `place` is the user's file and line; without
    it, the line that called.
    """
    logger = get_logger("fallback")
    if not warns and not logger.isEnabledFor(logging.INFO):
        return
    place = place or calling_line()
    logger.info("%s runs eagerly: %s", what, reason, extra={"place": place})
    if not warns or config.disable:
        return
    message = (
        f"{what} runs eagerly: {reason}\n"
        "  nothing of it is compiled; this is told once (filters: mlcc.EagerFallbackWarning)"
    )
    words = cure(reason)
    warn_at(place, f"{message}\n  remedy: {words}" if words else message)


def warn_at(place: tuple[str, int] | None, message: str) -> None:
    """An EagerFallbackWarning at a line of the user's; without one, at that of the caller."""
    if place is None:
        warnings.warn(message, EagerFallbackWarning, stacklevel=3)
    else:
        warnings.warn_explicit(message, EagerFallbackWarning, *place)


def remedy(reason: str) -> str:
    """What to do about a reason, one line."""
    return next((cure for what, cure in _REMEDIES if re.search(what, reason)), _ANY_REMEDY)


def forget() -> None:
    """Warn anew of each reason."""
    _warned.clear()


def calling_line() -> tuple[str, int] | None:
    """File and line of the innermost frame that is the user's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        filename = frame.f_code.co_filename
        if _is_users(filename):
            return filename, frame.f_lineno
        frame = frame.f_back
    return None


def traced_line(stack_trace: str) -> tuple[str, int] | None:
    """The innermost line of the user's in what torch keeps of a node: text as of a traceback."""
    for filename, line in reversed(_FRAME.findall(stack_trace)):
        if _is_users(filename):
            return filename, int(line)
    return None


def graph_line(graph: Any, stack_trace: str = "") -> tuple[str, int] | None:
    """Where the user wrote a graph: the node at fault, else the first one that tells."""
    traces = (node.meta.get("stack_trace") or "" for node in graph.nodes)
    for text in filter(None, (stack_trace, *traces)):
        if place := traced_line(text):
            return place
    return None


def computes(graph: Any) -> bool:
    """Whether a graph calls anything: one that returns its inputs loses nothing by running eagerly."""
    return any(node.op.startswith("call_") for node in graph.nodes)


def _is_users(filename: str) -> bool:
    return is_user_code(filename) and not filename.startswith("<eval_with_key>")
