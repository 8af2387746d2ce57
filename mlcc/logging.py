"""Logs of mlcc: one Python logger `mlcc.<channel>` per channel, chosen by MLCC_LOGS or TORCH_LOGS.

`MLCC_LOGS=recompiles,+graph` writes those channels to stderr, `+` with debug detail; `all` names every channel. A line:
time of day, channel, level, the user's line where there is one (`place` in a record's `extra`: file and line), message.
Works without torch.
"""

from __future__ import annotations

import difflib
import logging
import os
import sys

from mlcc._channels import CHANNELS

ENV = "MLCC_LOGS"

_warned: set[str] = set()


class _Formatter(logging.Formatter):
    """12:03:04.123 [mlcc.fallback] INFO model.py:31: forward graph runs eagerly: ..."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d [%(name)s] %(levelname)s %(at)s%(message)s")
        self.datefmt = "%H:%M:%S"

    def format(self, record: logging.LogRecord) -> str:
        place = getattr(record, "place", None)
        record.at = f"{os.path.basename(place[0])}:{place[1]}: " if place else ""
        return super().format(record)


class _StderrHandler(logging.StreamHandler):
    """Writes to the stderr of the moment, which tests and notebooks replace."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Formatter())

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


_handler = _StderrHandler()


def get_logger(channel: str) -> logging.Logger:
    """The logger of one channel."""
    if channel not in CHANNELS:
        raise ValueError(f"log channel {channel}: not one of {', '.join(CHANNELS)}")
    return logging.getLogger(f"mlcc.{channel}")


def parse(spec: str) -> tuple[dict[str, int], list[str]]:
    """Channel -> level for a text like `recompiles,+graph`, and one message per word that names no channel."""
    levels: dict[str, int] = {}
    problems = []
    for word in filter(None, (part.strip() for part in spec.split(","))):
        level = logging.DEBUG if word.startswith("+") else logging.INFO
        name = word.removeprefix("+")
        if name == "all":
            for channel in CHANNELS:
                levels[channel] = min(level, levels.get(channel, level))
        elif name in CHANNELS:
            levels[name] = min(level, levels.get(name, level))
        else:
            near = difflib.get_close_matches(name, CHANNELS, n=1, cutoff=0.5)
            known = ", ".join(CHANNELS)
            hint = f"nearest: {near[0]} (of {known})" if near else f"known: {known}"
            problems.append(f"unknown log channel {name}; {hint}")
    return levels, problems


def configure(spec: str | None = None) -> None:
    """Write the channels of `spec` (default: MLCC_LOGS) to stderr and leave the others to their defaults."""
    levels, problems = parse(os.environ.get(ENV, "") if spec is None else spec)
    for channel in CHANNELS:
        logger = logging.getLogger(f"mlcc.{channel}")
        if channel in levels:
            logger.setLevel(levels[channel])
            logger.propagate = False  # else a root handler or torch's writes the line again
            if _handler not in logger.handlers:
                logger.addHandler(_handler)
        elif _handler in logger.handlers:
            logger.removeHandler(_handler)
            logger.setLevel(logging.NOTSET)
            logger.propagate = True
    for problem in problems:
        if problem not in _warned:
            _warned.add(problem)
            logging.getLogger("mlcc").warning("%s: %s", ENV, problem)


configure()
