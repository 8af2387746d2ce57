"""Processes of one gloo group that run functions side by side; none is left behind, and nothing waits without end."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
GRACE = 5  # seconds for the others, when one process has failed


class Processes:
    """`world` processes, started by the first call and kept for the next ones."""

    def __init__(self, world: int, environment: dict[str, str] | None = None) -> None:
        self._world = world
        self._environment = environment or {}
        self._started: list[_Process] = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None

    def run(self, name: str, *arguments: Any, seconds: float = 200) -> list[Any]:
        """What `tests.distributed.<name>` ("module.function") returns in each process, as JSON holds it.

        AssertionError with all that they printed where one raises, ends or takes too long; they are gone then.
        """
        outcomes = self.outcomes(name, *arguments, seconds=seconds)
        if all("result" in outcome for outcome in outcomes):
            return [outcome["result"] for outcome in outcomes]
        raise AssertionError("\n".join(outcome.get("error", "") for outcome in outcomes))

    def outcomes(self, name: str, *arguments: Any, seconds: float = 200) -> list[dict[str, Any]]:
        """For each process {"result": ...} or {"error": what it printed}; all are gone if there is an error."""
        if not self._started:
            self._start()
        for process in self._started:
            process.send({"name": name, "arguments": arguments})
        answers = self._answers(time.monotonic() + seconds)
        if all("result" in answer for answer in answers):
            return answers
        for answer, process in zip(answers, self._started, strict=True):
            if "result" not in answer:
                answer["error"] = f"{process.name}: {answer.get('error', '')}\n{process.printed()}"
        self.stop()
        return answers

    def stop(self) -> None:
        """Ends the processes."""
        for process in self._started:
            process.stop()
        self._started = []
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="mlcc-group-")
        folder = Path(self._folder.name)
        self._started = [
            _Process(rank, self._world, folder, self._environment) for rank in range(self._world)
        ]

    def _answers(self, deadline: float) -> list[dict[str, Any]]:
        answers: list[dict[str, Any]] = [{} for _ in self._started]
        waiting = selectors.DefaultSelector()
        for rank, process in enumerate(self._started):
            waiting.register(process.answers, selectors.EVENT_READ, rank)
        while waiting.get_map() and (left := deadline - time.monotonic()) > 0:
            for key, _ in waiting.select(left):
                rank = key.data
                waiting.unregister(key.fileobj)
                line = self._started[rank].answers.readline()
                answers[rank] = json.loads(line) if line else {"error": "the process ended"}
                if "result" not in answers[rank]:
                    deadline = min(deadline, time.monotonic() + GRACE)
        waiting.close()
        for rank, answer in enumerate(answers):
            if not answer:
                answer["error"] = "no answer in time"
                self._started[rank].dump_stacks()
        return answers


class _Process:
    def __init__(self, rank: int, world: int, folder: Path, environment: dict[str, str]) -> None:
        self.name = f"process {rank}"
        self._output = folder / f"output{rank}"
        ours, theirs = os.pipe()
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-X", "faulthandler", "-m", "tests.distributed.worker"),
                    *(str(rank), str(world), str(folder / "store"), str(theirs)),
                ],
                cwd=ROOT,
                env=os.environ
                | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TORCH_NUM_THREADS": "1"}
                | environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs],
                text=True,
            )
        os.close(theirs)
        self.answers = os.fdopen(ours)

    def send(self, request: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def printed(self) -> str:
        return self._output.read_text(errors="replace")

    def dump_stacks(self) -> None:
        """Lets a process that hangs print where, which ends it."""
        self._process.send_signal(signal.SIGABRT)
        self._process.wait()

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        self.answers.close()
