"""Worker processes that check ops; one that crashes or hangs is replaced, and its task counts as failed."""

from __future__ import annotations

import json
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

WORKER = Path(__file__).with_name("worker.py")
# Importing torch and op_db, on a busy machine.
STARTUP_SECONDS = 120.0

Record = dict[str, Any]


class Task(NamedTuple):
    """An op with one dtype, and how many samples (None: all)."""

    op: str
    dtype: str
    samples: int | None


class Pool:
    """Runs tasks in `jobs` processes."""

    def __init__(
        self, backend: str, jobs: int, timeout: float, environment: dict[str, str]
    ) -> None:
        self._command = [sys.executable, str(WORKER), "--backend", backend]
        self._environment = environment
        self._jobs = jobs
        self._timeout = timeout

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[Task, Record]]:
        """Each task with its record, as they end."""
        waiting: queue.SimpleQueue[Task] = queue.SimpleQueue()
        for task in tasks:
            waiting.put(task)
        done: queue.SimpleQueue[tuple[Task, Record]] = queue.SimpleQueue()
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
        waiting: queue.SimpleQueue[Task],
        done: queue.SimpleQueue[tuple[Task, Record]],
        stopped: threading.Event,
    ) -> None:
        worker = _Worker(self._command, self._environment)
        try:
            while not stopped.is_set():
                try:
                    task = waiting.get_nowait()
                except queue.Empty:
                    return
                record = worker.check(task, self._timeout)
                if record.get("lost"):
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
        self._answered = False
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(json.loads(line))
        self._answers.put(None)

    def check(self, task: Task, timeout: float) -> Record:
        """The outcome; one with "lost" set if the process died or was too slow."""
        assert self._process.stdin is not None
        place = "before the first sample"
        try:
            self._process.stdin.write(json.dumps(task._asdict()) + "\n")
            self._process.stdin.flush()
            while True:
                patience = timeout if self._answered else max(timeout, STARTUP_SECONDS)
                answer = self._answers.get(timeout=patience)
                if answer is None:
                    return _lost(task, f"crash, {self._exit_status()}, {place}")
                self._answered = True
                if "outcome" in answer:
                    return dict(answer["outcome"])
                place = f"sample {answer['sample']}"
        except queue.Empty:
            return _lost(task, f"no answer within {timeout:.0f} s, {place}")
        except BrokenPipeError:
            return _lost(task, f"crash, {self._exit_status()}, {place}")

    def _exit_status(self) -> str:
        status = self._process.wait()
        return f"signal {-status}" if status < 0 else f"exit status {status}"

    def end(self) -> None:
        """Stop the process."""
        self._process.kill()
        self._process.wait()


def _lost(task: Task, reason: str) -> Record:
    return {
        "op": task.op,
        "dtype": task.dtype,
        "tried": 1,
        "passed": 0,
        "by_dynamo": 0,
        "seconds": 0.0,
        "reasons": [reason],
        "lost": True,
    }
