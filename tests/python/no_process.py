"""Compiles and runs for training and inference, and prints what processes were started meanwhile: [] 0.0 0 if none.

A program of its own, so that it can run on an installed mlcc too. With `--start` it only starts one, which must show.
"""

import ctypes
import os
import resource
import sys

STARTS = ("subprocess.", "os.fork", "os.exec", "os.posix_spawn", "os.spawn", "os.system", "pty.")
seen: list[str] = []


def _note(event: str, _: object) -> None:
    if event.startswith(STARTS):
        seen.append(event)


sys.addaudithook(_note)

import torch  # noqa: E402 (the hook comes first)

import mlcc  # noqa: E402
from mlcc import cli  # noqa: E402


def model(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.sin(torch.nn.functional.gelu(x @ w).softmax(-1))


def compile_and_run() -> None:
    run = torch.compile(model, backend="mlcc")
    w = torch.randn(8, 10, requires_grad=True)
    for rows in (6, 7, 9):
        x = torch.randn(rows, 8)
        result = run(x, w)
        torch.testing.assert_close(result, model(x, w))
        result.sum().backward()
    with torch.no_grad():
        run(torch.randn(6, 8), w)
    assert torch.equal(mlcc.jit(lambda x: x + 1)(torch.zeros(3)), torch.ones(3))
    assert mlcc.cache_info()["misses"] > 0
    cli.main(["info"])


def main() -> None:
    if "--start" in sys.argv:
        ctypes.CDLL(None).system(b": && exit 0")  # as C++ would, unseen by Python's hooks
    else:
        compile_and_run()
    # A child that runs, or that nobody waited for, and the time and memory of those that ended.
    try:
        os.waitpid(-1, os.WNOHANG)
        seen.append("a child process")
    except ChildProcessError:
        pass
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(mlcc.__file__)
    print(seen, used.ru_utime + used.ru_stime, used.ru_maxrss)


main()
