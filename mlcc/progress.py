"""While graphs compile for more than two seconds, one line of stderr tells how far; it is erased at the end.

Only where stderr is a terminal, and where neither CI, NO_COLOR, TERM=dumb, MLCC_LOGS nor MLCC_PROGRESS=0 says no.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator

from mlcc import _environment, config

_DELAY = 2.0  # seconds of compiling before anything is shown
_PERIOD = 0.25  # seconds between two lines
_PAUSE = (
    1.0  # seconds without compiling, as in Dynamo between graphs, after which counts begin anew
)
_ERASE = "\r\x1b[K"


class _Progress:
    """The compilations under way in all threads, which share the line."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._under_way = 0
        self._started = 0.0
        self._ended = float("-inf")
        self._graphs = 0
        self._kernels = 0
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        with self._lock:
            if self._under_way > 0:
                self._under_way += 1
                return
            now = time.monotonic()
            if now - self._ended > _PAUSE:
                self._started, self._graphs, self._kernels = now, 0, 0
            end = threading.Event()
            thread = threading.Thread(
                target=self._show, args=(end,), name="mlcc progress", daemon=True
            )
            thread.start()
            self._under_way, self._end, self._thread = 1, end, thread

    def add(self, kernels: int) -> None:
        with self._lock:
            self._graphs += 1
            self._kernels += kernels

    def end(self) -> None:
        with self._lock:
            self._under_way -= 1
            if self._under_way > 0 or self._end is None or self._thread is None:
                return
            self._ended = time.monotonic()
            self._end.set()
            thread = self._thread
        thread.join(1.0)  # what the program prints next begins on an empty line

    def line(self, now: float) -> str:
        return (
            f"mlcc compiles: {self._graphs} graphs done, {self._kernels} kernels, "
            f"{now - self._started:.0f} s"
        )

    def _show(self, end: threading.Event) -> None:
        """The thread of one stretch of compiling; whatever fails in it ends the line, not the compilation."""
        shown = False
        with contextlib.suppress(Exception):
            wait = self._started + _DELAY - time.monotonic()
            while not end.wait(max(wait, 0)):
                with self._lock:
                    text = self.line(time.monotonic())
                width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
                sys.stderr.write(_ERASE + text[: width - 1])
                sys.stderr.flush()
                shown, wait = True, _PERIOD
        if shown:
            with contextlib.suppress(Exception):
                sys.stderr.write(_ERASE)
                sys.stderr.flush()


_progress = _Progress()


def is_wanted() -> bool:
    """Whether this process's stderr and environment want a line."""
    environment = os.environ
    if environment.get(_environment.PROGRESS, "1").lower() in ("0", "false", "off", "no"):
        return False
    if any(environment.get(name) for name in ("CI", "NO_COLOR")):
        return False
    if environment.get("TERM") == "dumb" or config.logs:
        return False
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # there is none, or it is closed
        return False


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Compilation is under way inside."""
    if not is_wanted():
        yield
        return
    try:
        _progress.begin()
    except RuntimeError:  # no thread can be started any more
        yield
        return
    try:
        yield
    finally:
        _progress.end()


def graph_done(kernels: int) -> None:
    """One more graph is compiled, to so many kernels."""
    _progress.add(kernels)
