"""The line about compilations that take long: when it shows, what it says, and that it goes."""

from __future__ import annotations

import io
import os
import pty
import threading
import types
from collections.abc import Iterator

import pytest
import torch

from mlcc import progress
from mlcc.capture import backend


class Terminal(io.StringIO):
    """A stderr that says that it is a terminal, and tells when something is written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = threading.Event()
        self._main, self._file = pty.openpty()

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._file

    def write(self, text: str) -> int:
        count = super().write(text)
        self.written.set()
        return count

    def close_files(self) -> None:
        os.close(self._main)
        os.close(self._file)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """In the place of stderr, where nothing says no, and without the wait."""
    for name in ("CI", "NO_COLOR", "MLCC_LOGS", "MLCC_PROGRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_DELAY", 0.0)
    monkeypatch.setattr(progress, "_progress", progress._Progress())
    stderr = Terminal()
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stderr))  # pytest has sys's
    yield stderr
    stderr.close_files()


def test_it_shows_and_goes(terminal: Terminal) -> None:
    with progress.compiling(), progress.compiling():
        progress.graph_done(5)
        progress.graph_done(7)
        assert terminal.written.wait(60)
    text = terminal.getvalue()
    assert "mlcc compiles: " in text
    assert " graphs done, " in text
    assert text.endswith(progress._ERASE)
    assert progress._progress.line(progress._progress._started + 9).endswith(
        "2 graphs done, 12 kernels, 9 s"
    )


def test_short_compilations_show_nothing(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_DELAY", 3600.0)
    with progress.compiling():
        pass
    assert terminal.getvalue() == ""


def test_graphs_of_a_compiled_function_are_counted(terminal: Terminal) -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda x: x.exp() + 1, backend=backend.compile)
    run(torch.ones(3, requires_grad=True)).sum().backward()
    assert progress._progress._graphs >= 1
    assert progress._progress._under_way == 0


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CI", "true"),
        ("NO_COLOR", "1"),
        ("MLCC_LOGS", "perf"),
        ("MLCC_PROGRESS", "0"),
        ("TERM", "dumb"),
    ],
)
def test_who_says_no(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    assert progress.is_wanted()
    monkeypatch.setenv(name, value)
    assert not progress.is_wanted()
    threads = threading.active_count()
    with progress.compiling():
        assert threading.active_count() == threads


@pytest.mark.parametrize("stderr", [io.StringIO(), None])
def test_nothing_in_pipes(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, stderr: object
) -> None:
    monkeypatch.setattr(progress, "sys", types.SimpleNamespace(stderr=stderr))
    assert not progress.is_wanted()


def test_a_terminal_that_fails_does_not_end_a_compilation(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(text: str) -> int:
        terminal.written.set()
        raise OSError("gone")

    monkeypatch.setattr(terminal, "write", write)
    with progress.compiling():
        assert terminal.written.wait(60)
    assert progress._progress._under_way == 0


def test_a_thread_that_cannot_start_does_not_end_a_compilation(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with progress.compiling():
        pass
    assert progress._progress._under_way == 0
