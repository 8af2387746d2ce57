"""The log line of a recompile: what changed, and what to type to avoid it."""

from __future__ import annotations

import logging
import re

from mlcc.logging import get_logger
from mlcc.torch_private import dynamo

_SIZE = re.compile(r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_STRIDE = re.compile(r"tensor '(.+)' stride mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_RANK = re.compile(r"tensor '(.+)' rank mismatch\. expected (\d+), actual (\d+)")
_DTYPE = re.compile(r"tensor '(.+)' dtype mismatch\. expected (\w+), actual (\w+)")
_GRAD = re.compile(r"tensor '(.+)' requires_grad mismatch\. expected requires_grad=(\d)")
_STATE = re.compile(r"GLOBAL_STATE changed: (\w+)")
_VALUE = re.compile(r"^([\w.\[\]'\"]+) == (\S+)$")


def log() -> None:
    """Log why the compilation under way is not the function's first, if it is not."""
    logger = get_logger("recompiles")
    if not logger.isEnabledFor(logging.INFO):
        return
    recompile = dynamo.current_recompile()
    if recompile is not None:
        logger.info("%s", message(recompile))


def message(recompile: dynamo.Recompile) -> str:
    """For example: recompile 2 of f (model.py:31): x.size(1) was 128, now 160; mark it with ..."""
    place = f"{recompile.filename.rsplit('/', 1)[-1]}:{recompile.line}"
    return f"recompile {recompile.count} of {recompile.function} ({place}): {explain(recompile.reason)}"


def explain(reason: str) -> str:
    """Dynamo's words for a failed guard in ours, with the cure where there is one."""
    if match := _SIZE.search(reason):
        name, dim, old, new = match.groups()
        cure = f"mark it with torch._dynamo.mark_dynamic({name}, {dim})"
        return f"{name}.size({dim}) was {old}, now {new}; {cure}"
    if match := _STRIDE.search(reason):
        name, dim, old, new = match.groups()
        return f"{name}.stride({dim}) was {old}, now {new}; pass {name}.contiguous()"
    if match := _RANK.search(reason):
        name, old, new = match.groups()
        return f"{name}.dim() was {old}, now {new}; each rank is compiled once"
    if match := _DTYPE.search(reason):
        name, old, new = match.groups()
        return f"{name}.dtype was {old}, now {new}; each dtype is compiled once"
    if match := _GRAD.search(reason):
        name, old = match.groups()
        was, now = ("False", "True") if old == "0" else ("True", "False")
        return f"{name}.requires_grad was {was}, now {now}; call it under torch.no_grad() where no gradient is needed"
    if match := _STATE.search(reason):
        return f"{match[1].replace('_', ' ')} changed; each is compiled once"
    if match := _VALUE.search(reason):
        name, old = match.groups()
        return f"{name} was {old}; a value that changes should be passed as a tensor"
    return reason
