"""Programs whose warm answers once differed from cold ones: torch wraps something around their graphs that its cache
does not store.

As a script: runs each of them twice with a reset of Dynamo between, and once more with symbolic sizes, compares with
eager, and prints as JSON how torch's cache answered the first time: {name: {counter: number}}.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.distributions import MultivariateNormal

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from mlcc.capture.backend import compile as mlcc_backend

Results = list[torch.Tensor]
Program = Callable[[Callable[..., Any]], Results]  # of a function that compiles


def _matrix(n: int = 4) -> torch.Tensor:
    x = torch.randn(n, n, generator=torch.Generator().manual_seed(0))
    return x @ x.t() + torch.eye(n)


def inverse(compiled: Callable[..., Any]) -> Results:
    """An effect without a result: the check for errors."""
    run = compiled(lambda a: torch.linalg.inv(a.t() @ a + torch.eye(4)))
    return [run(_matrix()), run(_matrix() + 1)]


def solve(compiled: Callable[..., Any]) -> Results:
    """Two effects, and gradients through them."""
    a, b = _matrix().requires_grad_(), torch.ones(4, 2, requires_grad=True)

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.linalg.solve(a, b) + torch.linalg.cholesky(a).sum()

    result = compiled(function)(a, b)
    return [result, *torch.autograd.grad(result.square().sum(), [a, b])]


def density(compiled: Callable[..., Any]) -> Results:
    """Effects inside of a library."""

    def function(mean: torch.Tensor, covariance: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return MultivariateNormal(mean, covariance, validate_args=False).log_prob(x)

    return [compiled(function)(torch.zeros(4), _matrix(), torch.ones(3, 4))]


def nested_region(compiled: Callable[..., Any]) -> Results:
    """Effects inside of a region that is compiled once and called twice."""

    @torch.compiler.nested_compile_region
    def part(a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(a) * 2

    def function(a: torch.Tensor) -> torch.Tensor:
        return part(part(a)) + 1

    return [compiled(function)(_matrix())]


def overlapping_arguments(compiled: Callable[..., Any]) -> Results:
    """Arguments that overlap in other ways from call to call, and one of them is written."""
    results = []

    def write_then_read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    views: list[Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = [
        lambda t: (t[0], t[0]),
        lambda t: (t[:2].view(-1)[:5], t.view(-1)[3:8]),
        lambda t: (t.view(-1)[3:8], t.view(-1)[:5]),
        lambda t: (t[1], t[1]),
        lambda t: (t[0], t[1]),
        lambda t: (t[0], t.view(-1)[1:6]),
        lambda t: (t[1], t.view(-1)[6:11]),
        lambda t: (t[1], t[1].detach()),
        lambda t: (torch.cat([t, t])[2], t[1]),
        lambda t: (torch.cat([t, t])[2][:5],) * 2,
    ]
    for start in (0, 1, 4):
        run = compiled(write_then_read)
        for make in (*views[start:], *views[:start]):
            base = torch.arange(15.0).view(3, 5)
            results += [run(*make(base)), base]
        torch._dynamo.reset()
    return results


def interleaved_arguments(compiled: Callable[..., Any]) -> Results:
    """Arguments that lie between each other and do not overlap: AOTAutograd merges them all the same."""
    results = []

    def write_then_read(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    for first in (0, 1):
        run = compiled(write_then_read)
        for start in (first, 1 - first):
            base, other = torch.arange(6.0), torch.arange(6.0)
            results += [run(base[start::2], base[1 - start :: 2]), base]
            results += [run(base[start::2], other[1 - start :: 2]), base, other]
        torch._dynamo.reset()
    return results


def views_of_merged(compiled: Callable[..., Any]) -> Results:
    """Results that are views of overlapping arguments, one of which is written."""

    def function(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b[1:]

    base = torch.arange(12.0)
    run = compiled(function)
    results = [run(base[:4], base[2:6]), run(base[3:7], base[2:6])]
    for result in results:
        result.mul_(2)
    return [*results, base]


def effect_in_a_branch(compiled: Callable[..., Any]) -> Results:
    """A token that is an input of the graph, and that none of its nodes takes."""

    def other(x: torch.Tensor) -> torch.Tensor:
        return (x + 1).t().contiguous().t()  # as the inverse lies

    def function(p: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.cond(p > 0, torch.linalg.inv, other, (x,))
        return result

    run = compiled(function)
    return [run(torch.tensor(sign), _matrix().contiguous()) for sign in (1.0, -1.0)]


def written_views(compiled: Callable[..., Any]) -> Results:
    """The same where a graph has gradients, and where three arguments share memory."""

    def function(
        a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, w: torch.Tensor
    ) -> torch.Tensor:
        a.mul_(2)
        c.add_(b)
        return (a + c) * w

    results = []
    run = compiled(function)
    for offset in (0, 1, 2, 4):
        base, w = torch.arange(12.0), torch.ones(4, requires_grad=True)
        result = run(base[:4], base[offset : offset + 4], base[8:], w)
        results += [result, base, *torch.autograd.grad(result.sum(), [w])]
    return results


def repeated_backward(compiled: Callable[..., Any]) -> Results:
    """A backward pass that runs once in one call and twice in another."""
    w = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
    run = compiled(lambda x: ((x @ w).tanh() @ w).sigmoid().exp().sum())
    results = []
    for times in (1, 2, 1, 3):
        x = torch.ones(2, 3, requires_grad=True)
        loss = run(x)
        for turn in range(times):
            results += torch.autograd.grad(loss, [x, w], retain_graph=turn + 1 < times)
    return results


def views_at_offsets(compiled: Callable[..., Any]) -> Results:
    """Results that are views of inputs, which begin at other places of their memory."""
    results = []
    functions: list[Callable[[torch.Tensor], Any]] = [
        lambda x: x.t(),
        lambda x: (x[1:], x.sum()),
        lambda x: (x.view(-1)[2:].unsqueeze(0), x.mul(2)[1:]),
        lambda x: x.as_strided((2, 2), (1, 1), 1),
        lambda x: (x.add_(1).t(), x[0]),
        lambda x: x.view(x.shape[0], 2, -1).transpose(0, 1),
        lambda x: x.view(-1)[x.shape[0] :].view(-1, 2),
        lambda x: x.diagonal().unsqueeze(0),
    ]
    for function in functions:
        run = compiled(function)
        for offset in (0, 3, 1):
            base = torch.arange(24.0)
            made = run(base[offset : offset + 16].view(4, 4))
            for result in made if isinstance(made, tuple) else (made,):
                results.append(result.clone())
                result.mul_(3)
            results.append(base)
    return results


def constants(compiled: Callable[..., Any]) -> Results:
    """Graphs that differ in the values of what they hold, in the default dtype and in modes only."""
    results = []
    for values in ([1.0, 2.0], [3.0, 4.0]):
        held = torch.tensor(values)

        class Holder(torch.nn.Module):
            def __init__(self, held: torch.Tensor) -> None:
                super().__init__()
                self.held = held

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return x * self.held + torch.tensor(values)

        results.append(compiled(Holder(held))(torch.ones(2)))
        torch._dynamo.reset()
    before = torch.get_default_dtype()
    for dtype in (torch.float32, torch.float64):
        try:
            torch.set_default_dtype(dtype)
            results.append(
                compiled(lambda x: x + torch.ones(2) + torch.full((), 0.1))(torch.ones(2))
            )
        finally:
            torch.set_default_dtype(before)
        torch._dynamo.reset()
    for mode in (torch.no_grad, torch.inference_mode, torch.enable_grad):
        with mode():
            results.append(compiled(lambda x: x.sin() + torch.zeros(2).cos())(torch.ones(2)))
    return results


def floats(compiled: Callable[..., Any]) -> Results:
    """Numbers that are inputs of the graph."""
    run = compiled(lambda x, a, n: (x * a).clamp(max=n) + n)
    x = torch.linspace(-2, 2, 5, requires_grad=True)
    results = []
    for a, n in ((2.0, 1), (3.5, 2), (-1.0, 3), (2.0, 1)):
        result = run(x, a, n)
        results += [result, *torch.autograd.grad(result.sum(), x)]
    return results


PROGRAMS: dict[str, Program] = {
    function.__name__: function
    for function in (
        *(inverse, solve, density, nested_region),
        *(overlapping_arguments, interleaved_arguments, views_of_merged, written_views),
        *(repeated_backward, views_at_offsets, effect_in_a_branch),
        *(constants, floats),
    )
}


def check(name: str, dynamic: bool | None = None) -> dict[str, int]:
    """Run a program on an emptied Dynamo and compare with eager; how torch's cache answered."""
    counters = torch._dynamo.utils.counters
    torch._dynamo.reset()
    counters.clear()
    expected = PROGRAMS[name](lambda function: function)
    found = PROGRAMS[name](
        lambda function: torch.compile(function, backend=mlcc_backend, dynamic=dynamic)
    )
    torch.testing.assert_close(
        found, expected, rtol=1e-4, atol=1e-5, msg=lambda text: f"{name}: {text}"
    )
    assert [one.dtype for one in found] == [one.dtype for one in expected], name
    return dict(counters["aot_autograd"])


def main() -> None:
    """Run all programs twice; the counters are those of the first time."""
    answers = {}
    for name in PROGRAMS:
        answers[name] = check(name)
        check(name)
        check(name, dynamic=True)
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
