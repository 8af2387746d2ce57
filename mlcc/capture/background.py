"""Work that goes on behind the program's calls, on one thread that ends when nothing is left to do.

A process that ends waits for the piece under way and drops the others. So does one that forks, whose child has no
threads: there, and where no thread can be had, a job is done by whoever asks for its result.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any


class Job:
    """A function that is called once, behind the calls or by who needs its result first."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._result: Any = None
        self._error: BaseException | None = None
        self.forget_other_threads()

    def forget_other_threads(self) -> None:
        """In a forked child: nobody else does the work."""
        self._lock = threading.Lock()  # held by who does it
        self._ended = threading.Event()
        if self._work is None:
            self._ended.set()

    def wait(self, seconds: float) -> bool:
        """Whether it is done, after so many seconds at most."""
        return self._ended.wait(seconds)

    def is_due(self) -> bool:
        """Whether `result` need not wait for a thread: the work is done, or left to who asks."""
        return self._ended.is_set() or not _worker.has(self)

    def result(self) -> Any:
        """What the function returned, or raised; does the work unless that was begun."""
        self.do()
        if self._error is not None:
            raise self._error
        return self._result

    def do(self) -> None:
        """Do the work, or wait for who does it."""
        with self._lock:
            if self._work is None:
                return
            try:
                self._result = self._work()
            except BaseException as error:
                self._error = error
            self._work = None
            self._ended.set()


class _Worker:
    """The jobs to come, and the thread that does them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: deque[Job] = deque()
        self._all: weakref.WeakSet[Job] = weakref.WeakSet()
        self._under_way: Job | None = None
        self._thread: threading.Thread | None = None
        self._forks = 0  # under way

    def has(self, job: Job) -> bool:
        with self._lock:
            return self._thread is not None and (job is self._under_way or job in self._jobs)

    def add(self, job: Job) -> None:
        with self._lock:
            self._all.add(job)
            self._jobs.append(job)
            self._start()

    def _start(self) -> None:
        if self._thread is not None or self._forks or not self._jobs:
            return
        thread = threading.Thread(target=self._run, name="mlcc compiles")
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are as many threads as may be
            return
        self._thread = thread

    def _run(self) -> None:
        while True:
            with self._lock:
                is_over = self._forks or not threading.main_thread().is_alive()
                if is_over or not self._jobs:
                    self._under_way = self._thread = None
                    return
                job = self._under_way = self._jobs.popleft()
            job.do()

    def before_fork(self) -> None:
        """Wait for the thread to end: it may hold locks of the core, and a child has the locks without the thread."""
        with self._lock:
            self._forks += 1
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_in_parent(self) -> None:
        with self._lock:
            self._forks -= 1
            self._start()

    def after_in_child(self) -> None:
        self._lock = threading.Lock()
        self._forks = 0
        self._jobs.clear()
        self._under_way = self._thread = None
        for job in self._all:
            job.forget_other_threads()


_worker = _Worker()
os.register_at_fork(
    before=_worker.before_fork,
    after_in_parent=_worker.after_in_parent,
    after_in_child=_worker.after_in_child,
)


def begin(work: Callable[[], Any]) -> Job:
    """A job that is done behind the calls, after those that were begun before."""
    job = Job(work)
    _worker.add(job)
    return job
