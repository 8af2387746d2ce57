"""Worker processes that answer tasks; one that crashes or hangs is replaced, and its task is lost.

A worker reads one JSON task a line from stdin. It answers with JSON lines: any number of {"at": place} to say that it
lives, then {"outcome": {...}}.
"""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

# Importing torch and op_db, on a busy machine.
STARTUP_SECONDS = 120.0

Record = dict[str, Any]


class Task(Protocol):
    """A named tuple of what JSON can hold."""

    def _asdict(self) -> dict[str, Any]: ...


T = TypeVar("T", bound=Task)


class Lost(NamedTuple):
    """What stands for the outcome of a task whose worker died or was too slow."""

    reason: str


class Pool(Generic[T]):
    """Runs tasks in `jobs` processes of one command; `timeout` is what may pass between two lines, in seconds.

    A process that has answered `lifetime` tasks gives way to a fresh one, which bounds the memory.
    """

    def __init__(
        self,
        command: Sequence[str],
        jobs: int,
        timeout: float,
        environment: dict[str, str],
        lifetime: int | None = None,
    ) -> None:
        self._command = [sys.executable, *command]
        self._environment = environment
        self._jobs = jobs
        self._timeout = timeout
        self._lifetime = lifetime

    def run(self, tasks: Sequence[T]) -> Iterator[tuple[T, Record | Lost]]:
        """Each task with its outcome, as they end."""
        waiting: queue.SimpleQueue[T] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        done: queue.SimpleQueue[tuple[T, Record | Lost]] = queue.SimpleQueue()
        stopped = threading.Event()
        threads = [
            threading.Thread(target=self._serve, args=(waiting, done, stopped), daemon=True)
            for _ in range(min(self._jobs, len(tasks)))
        ]
        for thread in threads:
            thread.start()
        try:
            for _ in tasks:
                yield done.get()
        finally:
            stopped.set()
            for thread in threads:
                thread.join()

    def _serve(
        self,
        waiting: queue.SimpleQueue[T],
        done: queue.SimpleQueue[tuple[T, Record | Lost]],
        stopped: threading.Event,
    ) -> None:
        worker = _Worker(self._command, self._environment)
        try:
            while not stopped.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                if worker.num_answered == self._lifetime:
                    worker.end()
                    worker = _Worker(self._command, self._environment)
                record = worker.check(task, self._timeout)
                if isinstance(record, Lost):
                    worker.end()
                    worker = _Worker(self._command, self._environment)
                done.put((task, record))
        finally:
            worker.end()


class _Worker:
    """One process and the thread that reads its answers."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answers: queue.SimpleQueue[Record | None] = queue.SimpleQueue()
        self._lives = False
        self.num_answered = 0
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def check(self, task: Task, timeout: float) -> Record | Lost:
        """The outcome."""
        assert self._process.stdin is not None
        place = "at its start"
        try:
            self._process.stdin.write(json.dumps(task._asdict()) + "\n")
            self._process.stdin.flush()
            while True:
                patience = timeout if self._lives else max(timeout, STARTUP_SECONDS)
                answer = self._answers.get(timeout=patience)
                if answer is None:
                    return Lost(f"crash, {self._exit_status()}, {place}")
                self._lives = True
                if "outcome" in answer:
                    self.num_answered += 1
                    return dict(answer["outcome"])
                place = str(answer["at"])
        except queue.Empty:
            return Lost(f"no answer within {timeout:.0f} s, {place}")
        except BrokenPipeError:
            return Lost(f"crash, {self._exit_status()}, {place}")

    def _exit_status(self) -> str:
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.wait()
