"""Many threads, forked children, daemons, workers of a DataLoader, and the end of the process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from tests.python.behaviour import compiled
from tests.python.test_threads import at_once

ROOT = Path(__file__).resolve().parents[2]


def run_script(text: str, seconds: int = 100) -> subprocess.CompletedProcess[str]:
    """A process of its own; it fails the test if it hangs, and its text is printed."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result


# -- threads


def make(number: int) -> tuple[Any, Any]:
    def function(x: torch.Tensor) -> torch.Tensor:
        return (x * number).tanh().softmax(-1) + number

    return function, torch.randn(3 + number, 5)


def test_16_threads_compile_and_call() -> None:
    """Functions of their own and one in common, through both doors."""
    torch._dynamo.reset()
    shared = torch.compile(lambda x: x.exp().sum(0), backend="mlcc", dynamic=True)
    shared_jit = mlcc.jit(lambda x: x.sin() * 2)

    def work(number: int) -> bool:
        function, x = make(number)
        run = torch.compile(function, backend="mlcc") if number % 4 == 0 else mlcc.jit(make(1)[0])
        expected = function(x) if number % 4 == 0 else make(1)[0](x)
        if number % 4 == 0:
            torch.testing.assert_close(run(x), expected)
        for _ in range(5):
            torch.testing.assert_close(shared(x), x.exp().sum(0))
            torch.testing.assert_close(shared_jit(x), x.sin() * 2)
        return True

    assert at_once(*[lambda n=n: work(n) for n in range(16)]) == [True] * 16


def test_threads_train() -> None:
    """Backward passes on several threads, through one module."""
    torch._dynamo.reset()
    module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    run = torch.compile(module, backend="mlcc", dynamic=True)

    def work(number: int) -> bool:
        x = torch.randn(number + 2, 4)
        for _ in range(3):
            found = torch.autograd.grad(run(x).square().sum(), list(module.parameters()))
            expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
            torch.testing.assert_close(found, expected)
        return True

    assert at_once(*[lambda n=n: work(n) for n in range(4)]) == [True] * 4


# -- fork

FORK = """
import os, signal, sys, time, torch, mlcc
torch.set_num_threads({threads})

def f(x): return (x * 3).tanh().sum(-1)
def g(x): return (x + 1).exp() * x.amax()
x = torch.randn(400, 1000)
run, jitted = torch.compile(f, backend="mlcc"), mlcc.jit(f)
expected, other = f(x), g(x)
assert torch.allclose(run(x), expected, atol=1e-4) and torch.allclose(jitted(x), expected, atol=1e-4)
torch.randn(1000, 1000).mul(2)  # a parallel region of eager's own

def child():
    assert torch.allclose(run(x), expected, atol=1e-4)
    assert torch.allclose(jitted(x), expected, atol=1e-4)
    assert torch.allclose(torch.compile(g, backend="mlcc")(x), other)
    assert torch.allclose(mlcc.jit(g)(x), other)
    grand = os.fork()
    if grand == 0:
        os._exit(0 if torch.allclose(run(x), expected, atol=1e-4) else 1)
    assert os.waitpid(grand, 0)[1] == 0

children = []
for _ in range(2):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        except BaseException as error:
            import traceback; traceback.print_exc()
            os._exit(1)
        os._exit(0)
    children.append(pid)
limit = time.monotonic() + 60
left = set(children)
while left and time.monotonic() < limit:
    for pid in list(left):
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            assert status == 0, status
            left.remove(pid)
    time.sleep(0.02)
for pid in left:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
assert not left, "a child hangs"
assert torch.allclose(run(x), expected, atol=1e-4)
print("done")
"""


@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_calls_and_compiles(threads: int) -> None:
    """Its own child too. With two threads eager's kernels hang in a child; ours run on the calling thread."""
    text = FORK.replace("{threads}", str(threads))
    if threads > 1:  # comparisons by kernels that do not start threads
        text = text.replace("torch.allclose(", "close(").replace(
            "def f(x)",
            "def close(a, b, **_):\n"
            "    return len(a.shape) == len(b.shape) and a.shape == b.shape and all(\n"
            "        abs(p - q) < 1e-3 for p, q in zip(a.view(-1)[:400].tolist(), b.view(-1)[:400].tolist()))\n"
            "\ndef f(x)",
        )
    assert "done" in run_script(text).stdout


def test_a_fork_while_others_compile() -> None:
    """Locks of the core that another thread held at the fork do not hold the child up."""
    run_script(
        """
        import os, signal, threading, time, torch
        from mlcc._load import load_core
        core = load_core()
        torch.set_num_threads(1)
        text = "graph @f(%x: f32[{n}]) {{ %0: f32[{n}] = exp %x %1: f32[{n}] = add %0, %x return %1 }}"
        stop = threading.Event()

        def compile_on(first):
            n = first
            while not stop.is_set():
                core.compile(text.format(n=n))
                n += 2

        threads = [threading.Thread(target=compile_on, args=(i,)) for i in (3, 4)]
        for thread in threads: thread.start()
        late = 0
        for attempt in range(12):
            time.sleep(0.03)
            pid = os.fork()
            if pid == 0:
                x = torch.ones(7000 + attempt)
                made = core.compile(text.format(n=7000 + attempt))
                os._exit(0 if abs(made([x])[0][0].item() - 3.71828) < 1e-3 else 1)
            limit = time.monotonic() + 20
            while True:
                done, status = os.waitpid(pid, os.WNOHANG)
                if done: break
                if time.monotonic() > limit:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                    late += 1
                    status = 0
                    break
                time.sleep(0.01)
            assert status == 0, status
            if late: break
        stop.set()
        for thread in threads: thread.join()
        assert late == 0, "a child hangs"
        """
    )


# -- workers


class Rows(torch.utils.data.Dataset[torch.Tensor]):
    """Each element is computed by a compiled function, in the worker."""

    def __init__(self) -> None:
        self.run = mlcc.jit(lambda x: (x * 2).exp() + 1)
        self.data = torch.randn(12, 30)

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, place: int) -> torch.Tensor:
        return self.run(self.data[place])


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_of_a_data_loader(context: str) -> None:
    if context == "spawn":  # a lambda cannot travel: what is pickled is the function
        run_script(
            """
            import torch, mlcc
            from tests.python.test_processes import SpawnedRows
            if __name__ == "__main__":
                rows = SpawnedRows()
                loader = torch.utils.data.DataLoader(
                    rows, batch_size=3, num_workers=2, multiprocessing_context="spawn")
                found = torch.cat(list(loader))
                torch.testing.assert_close(found, (rows.data * 2).exp() + 1)
            """
        )
        return
    rows = Rows()
    rows[0]
    loader = torch.utils.data.DataLoader(
        rows, batch_size=3, num_workers=2, multiprocessing_context=context, timeout=60
    )
    torch.testing.assert_close(torch.cat(list(loader)), (rows.data * 2).exp() + 1)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return (x * 2).exp() + 1


class SpawnedRows(Rows):
    """The same with a function that can be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.run = mlcc.jit(doubled)


def in_a_daemon(queue: Any) -> None:
    """A daemonic process may not have children; mlcc needs none."""
    torch.set_num_threads(1)
    x = torch.ones(5)
    queue.put([mlcc.jit(doubled)(x).tolist(), compiled(doubled)(x).tolist()])


def test_a_daemonic_process() -> None:
    context = multiprocessing.get_context("fork")
    queue = context.SimpleQueue()
    process = context.Process(target=in_a_daemon, args=(queue,), daemon=True)
    process.start()
    process.join(60)
    assert process.exitcode == 0
    expected = doubled(torch.ones(5)).tolist()
    assert queue.get() == [pytest.approx(expected), pytest.approx(expected)]


# -- the end


@pytest.mark.parametrize(
    "ending", ["pass", "sys.exit(0)", "os._exit(0)", "os.kill(os.getpid(), 15)"]
)
def test_the_process_ends_while_a_thread_compiles(ending: str) -> None:
    """Neither a crash nor a hang, whatever ends it."""
    text = """
    import os, sys, threading, time, torch, mlcc
    from mlcc import config
    from mlcc._load import load_core
    core, options = load_core(), config.resolve()
    text = "graph @f(%x: f32[{n}, 64]) {{ %0: f32[{n}, 64] = exp %x return %0 }}"

    def compile_on(first):
        n = first
        while True:
            core.compile(text.format(n=n), options)  # without torch, whose own ops abort at the end
            n += 2

    for i in (3, 4):
        threading.Thread(target=compile_on, args=(i,), daemon=True).start()
    time.sleep(0.5)
    print("compiling", flush=True)
    ENDING
    """
    started = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(text).replace("ENDING", ending)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert "compiling" in result.stdout, result.stderr
    expected = -signal.SIGTERM if "kill" in ending else 0
    assert result.returncode == expected, result.stderr
    assert time.monotonic() - started < 60


def test_no_process_is_left() -> None:
    """After all of the above, nothing that this process started is unwaited for."""
    multiprocessing.active_children()
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
