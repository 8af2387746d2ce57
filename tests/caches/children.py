"""Processes that run programs (programs.py) on a folder of caches, forked from one that has imported torch."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from tests.caches import programs
from tests.caches.programs import Case

_FORK = multiprocessing.get_context("fork")


def warm_up() -> None:
    """Import in this process what its children need, and compile something that is not kept."""
    import mlcc

    torch.set_num_threads(1)
    with mlcc.config.patch(torch_caches=False, warm_start=False, cache_size_mb=0):
        x = torch.ones(3, requires_grad=True)
        torch.compile(lambda x: x.neg().sum(), backend="mlcc")(x).backward()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


@dataclass
class Report:
    """What a child told."""

    begun: list[Case] = field(default_factory=list)
    ended: list[Case] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    work: dict[str, int] = field(default_factory=dict)  # of a child that came to its end
    exit_status: int | None = None


@dataclass(frozen=True)
class FileLimit:
    """How long files may become. What is longer is cut there, and then the writer dies or gets an error."""

    bytes: int
    kills: bool


class Child:
    """One process; `report` is what it has told so far."""

    def __init__(self, folder: Path, cases: Sequence[Case], limit: FileLimit | None = None) -> None:
        self.report = Report()
        self.connection, its_end = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=_run, args=(its_end, folder, cases, limit))
        self._process.start()
        its_end.close()

    def hear(self) -> bool:
        """Wait for one message; False where the process has ended."""
        try:
            kind, value = self.connection.recv()
        except (EOFError, OSError):
            self._process.join()
            self.report.exit_status = self._process.exitcode
            return False
        if kind == "work":
            self.report.work = value
        elif kind == "fault":
            self.report.faults.append(value)
        else:
            (self.report.begun if kind == "begun" else self.report.ended).append(Case(*value))
        return True

    def kill(self) -> None:
        """Let it end without another instruction."""
        self._process.kill()

    def end(self) -> Report:
        """The whole report, once the process has ended by itself."""
        while self.hear():
            pass
        return self.report


def _run(
    connection: Connection, folder: Path, cases: Iterable[Case], limit: FileLimit | None
) -> None:
    os.environ["MLCC_CACHE_DIR"] = str(folder / "mlcc")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "torch")
    if limit is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if limit.kills else signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit.bytes, limit.bytes))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def tell(kind: str, value: Any) -> None:
        connection.send((kind, value))

    before = programs.work_done()
    for case in cases:
        tell("begun", case)
        if fault := programs.check(case):
            tell("fault", fault)
        tell("ended", case)
    now = programs.work_done()
    tell("work", {name: now[name] - before[name] for name in now})


def run(folder: Path, cases: Sequence[Case], limit: FileLimit | None = None) -> Report:
    """A child that runs to its end. Where it did not come there, that is a fault."""
    report = Child(folder, cases, limit).end()
    if report.exit_status != 0:
        report.faults.append(f"exit status {report.exit_status} in {report.begun[-1:]}")
    return report
