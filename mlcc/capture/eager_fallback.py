"""What runs eagerly as a whole: a line in the log `fallback`, and once per reason a warning with the user's line."""

from __future__ import annotations

import logging
import re
import sys
import warnings
from types import FrameType
from typing import Any

from mlcc import config
from mlcc._errors import EagerFallbackWarning
from mlcc._load import BUILD_HINT
from mlcc.capture.code_owners import is_user_code
from mlcc.logging import get_logger

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')

# (what a reason says, what to do): the first that fits.
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
    (r"conjugate|negated", "pass x.resolve_conj() or x.resolve_neg()"),
    (
        r"forward-mode|a mode of torch",
        "call it outside of the transform or mode, or compile around",
    ),
    (r"requires gradients", "write to x.detach(), or call it under torch.no_grad()"),
    (
        r"traces for other values",
        "pass the number that changes as a tensor, so that one trace fits all of them",
    ),
    (r"it changes|it draws|it writes|it fills|it calls", "return new values, and store outside"),
    (
        r"^an argument",
        "pass plain tensors, or give this argument to a function that is not compiled",
    ),
)
_ANY_REMEDY = "leave what is named outside of the compiled function (torch.compiler.disable)"

_warned: set[str] = set()


def tell(
    what: str,
    reason: Any,
    *,
    place: tuple[str, int] | None = None,
    is_loss: bool = True,
    cure: str | None = None,
    is_new: bool | None = None,
) -> None:
    """Log that `what` ("forward graph") runs eagerly, and warn if the reason is a new one and `is_loss`.

    `place` is the user's file and line; without it, the line that called. `cure` is what to do ('': the reason says
    it); without it one is found by the reason. `is_new` overrules whether the reason was warned of before.
    """
    logger = get_logger("fallback")
    text = str(reason)
    is_new = is_loss and (text not in _warned if is_new is None else is_new)
    if not is_new and not logger.isEnabledFor(logging.INFO):
        return
    place = place or calling_line()
    logger.info("%s runs eagerly: %s", what, text, extra={"place": place})
    if is_new and not config.disable:
        _warned.add(text)
        message = (
            f"{what} runs eagerly: {text}\n"
            "  nothing of it is compiled; this is told once (filters: mlcc.EagerFallbackWarning)"
        )
        cure = remedy(text) if cure is None else cure
        message += f"\n  remedy: {cure}" if cure else ""
        warn_at(place, message)


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
