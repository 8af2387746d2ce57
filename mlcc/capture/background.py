"""Work that goes on behind the program's calls, on one thread that ends when nothing is left to do.

A process that ends waits for the piece under way and drops the others. So does one that forks, whose child has no
threads: there, and where no thread can be had, a job is done by whoever asks for its result.
"""

from __future__ import annotations

import _thread
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any

_PAUSE = 0.25  # seconds after a fork until it is told that Ctrl-C was pressed meanwhile


class Job:
    """A function that is called once, behind the calls or by who needs its result first."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work: Callable[[], Any] | None = work
        self._result: Any = None
        self._error: Exception | None = None
        self._traceback: TracebackType | None = None
        self.forget_other_threads()
        _jobs.add(self)

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
            raise self._error.with_traceback(self._traceback)  # which else grows with each
        return self._result

    def do(self) -> None:
        """Do the work, or wait for who does it. What ends a program (KeyboardInterrupt) leaves the work to be done."""
        with self._lock:
            if self._work is None:
                return
            try:
                self._result = self._work()
            except Exception as error:
                self._error, self._traceback = error, error.__traceback__
            self._work = None
            self._ended.set()


_jobs: weakref.WeakSet[Job] = weakref.WeakSet()


class _Worker:
    """The jobs to come, and the thread that does them."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may fork
        self._jobs: deque[Job] = deque()
        self._under_way: Job | None = None
        self._thread: threading.Thread | None = None
        self._idle = threading.Event()  # no thread works
        self._idle.set()
        self._forks = 0  # under way
        self._was_interrupted = False  # while it waited for the thread

    def has(self, job: Job) -> bool:
        with self._lock:
            is_alive = self._thread is not None and self._thread.is_alive()
            return is_alive and (job is self._under_way or job in self._jobs)

    def add(self, job: Job, *, is_first: bool) -> None:
        with self._lock:
            if is_first:
                self._jobs.appendleft(job)
            else:
                self._jobs.append(job)
            self._start()

    def _start(self) -> None:
        if self._thread is not None or self._forks or not self._jobs:
            return
        self._thread = threading.Thread(target=self._run, name="mlcc compiles")
        self._idle.clear()
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter is ending, or there are as many threads as may be
            self._thread = None
            self._idle.set()

    def _run(self) -> None:
        while True:
            with self._lock:
                is_over = self._forks or not threading.main_thread().is_alive()
                if is_over or not self._jobs:
                    self._under_way = self._thread = None
                    self._idle.set()
                    return
                job = self._under_way = self._jobs.popleft()
            job.do()

    def before_fork(self) -> None:
        """Wait for the thread to end: it may hold locks of the core, and a child has the locks without the thread."""
        with self._lock:
            self._forks += 1
            thread = self._thread
        if thread is None or thread is threading.current_thread():
            return
        is_over = False
        while not is_over:
            try:
                is_over = self._idle.wait()  # a join that Ctrl-C ends takes the thread for dead
            except KeyboardInterrupt:  # which Python drops here
                self._was_interrupted = True
        thread.join()

    def after_in_parent(self) -> None:
        with self._lock:
            self._forks -= 1
            self._start()
            if self._was_interrupted:
                self._was_interrupted = False
                threading.Timer(_PAUSE, _thread.interrupt_main).start()

    def after_in_child(self) -> None:
        self._lock = threading.RLock()
        self._forks = 0
        self._jobs.clear()
        self._under_way = self._thread = None
        self._idle = threading.Event()
        self._idle.set()
        for job in _jobs:
            job.forget_other_threads()


_worker = _Worker()
os.register_at_fork(
    before=_worker.before_fork,
    after_in_parent=_worker.after_in_parent,
    after_in_child=_worker.after_in_child,
)


def begin(work: Callable[[], Any], *, is_first: bool = False) -> Job:
    """A job that is done behind the calls, after those that were begun before, or before those that wait."""
    job = Job(work)
    _worker.add(job, is_first=is_first)
    return job
