"""The log line of a recompile: what changed, and what to type to avoid it."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import Any

from mlcc.logging import get_logger
from mlcc.torch_private import dynamo

_SIZE = re.compile(r"tensor '(.+)' size mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_STRIDE = re.compile(r"tensor '(.+)' stride mismatch at index (\d+)\. expected (\d+), actual (\d+)")
_RANK = re.compile(r"tensor '(.+)' rank mismatch\. expected (\d+), actual (\d+)")
_DTYPE = re.compile(r"tensor '(.+)' dtype mismatch\. expected (\w+), actual (\w+)")
_GRAD = re.compile(r"tensor '(.+)' requires_grad mismatch\. expected requires_grad=(\d)")
_STATE = re.compile(r"GLOBAL_STATE changed: (\w+)")
_SOURCE = r"[\w.\[\]'\"]+"
_VALUE = re.compile(rf"^({_SOURCE}) == (.+)$")
_LENGTH = re.compile(rf"^len\(({_SOURCE})\) == (\d+)$")
_TYPE = re.compile(rf"^___check_type_id\(({_SOURCE}), \d+\), type=<class '([\w.]+)'>")
_NONE = re.compile(rf"^({_SOURCE}) is (not )?None$")
_GLOBAL = re.compile(r"^G\['(\w+)'\]")
_LOCAL = re.compile(r"^L\['(\w+)'\]")
_PLAIN = (bool, int, float, str, type(None))
_LONGEST_VALUE = 60  # characters of a value in a message


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
        cure = "each value is compiled once"
        if not old.startswith(("'", '"')):
            cure = "a value that changes should be passed as a tensor"
        return f"{_name(name)} was {_short(old)}{_now(name, _plain)}; {cure}"
    if match := _LENGTH.search(reason):
        name, old = match.groups()
        return f"len({_name(name)}) was {old}{_now(name, _length)}; each length is compiled once"
    if match := _TYPE.search(reason):
        name, old = match.groups()
        return f"{_name(name)} was a {old}{_now(name, _kind)}; each type is compiled once"
    if match := _NONE.search(reason):
        name, was_not = match.groups()
        was, now = ("not None", "None") if was_not else ("None", "not None")
        return f"{_name(name)} was {was}, now {now}; each of both is compiled once"
    return reason


def _name(source: str) -> str:
    """G['SCALE'] as "global SCALE", L['x'] as x."""
    return _LOCAL.sub(r"\1", _GLOBAL.sub(r"global \1", source))


def _now(source: str, describe: Callable[[Any], str]) -> str:
    """ ", now 3", where the value can be told and described, else ''."""
    try:
        text = describe(dynamo.value_now(source))
    except LookupError:
        return ""
    return f", now {_short(text)}"


def _plain(value: Any) -> str:
    return repr(value) if type(value) in _PLAIN else f"a {type(value).__name__}"


def _length(value: Any) -> str:
    if type(value) not in (list, tuple, dict, set, frozenset, str):
        raise LookupError  # its __len__ is the user's code
    return str(len(value))


def _kind(value: Any) -> str:
    return f"a {type(value).__name__}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}..."
