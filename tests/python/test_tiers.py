"""First calls that run op by op while their kernels are compiled behind them (option `tier`)."""

from __future__ import annotations

import functools
import math
import os
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import Graph, GraphModule

import mlcc
from mlcc._errors import InternalError
from mlcc.capture import background, session, tiers
from mlcc.capture.eager_run import EagerRun
from mlcc.ir.types import GraphUnsupported
from mlcc.torch_private import tracing
from tests.python.test_jit import found_in_core


class Gate:
    """Holds compilations up until it is opened."""

    def __init__(self) -> None:
        self.reached, self.opened = threading.Event(), threading.Event()
        self.failure: Exception | None = None
        self.threads: list[threading.Thread] = []
        self._compile = session._compiled

    def compiled(self, *args: Any) -> Any:
        self.threads.append(threading.current_thread())
        self.reached.set()
        assert self.opened.wait(60)
        if self.failure is not None:
            raise self.failure
        return self._compile(*args)

    def open(self) -> None:
        self.opened.set()
        assert background.begin(lambda: None).wait(60)  # after those that were begun before


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(session, "_compiled", gate.compiled)
    torch.compiler.reset()
    with mlcc.config.patch(tier="fast", torch_caches=False, warm_start=False):
        yield gate
    gate.open()


def _network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.GELU(), torch.nn.Linear(8, 3))


def _by_compile(function: Any) -> Any:
    return torch.compile(function, backend="mlcc", dynamic=True)


WAYS = pytest.mark.parametrize("way", [_by_compile, mlcc.jit], ids=["compile", "jit"])


@WAYS
def test_calls_are_served_before_and_after(way: Callable[[Any], Any], gate: Gate) -> None:
    net = _network()
    run = way(net)
    with torch.no_grad():
        for rows in (4, 5, 4, 7):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(run(x), net(x))
        assert gate.reached.wait(60)
        assert len(gate.threads) == 1
        assert gate.threads[0] is not threading.current_thread()
        gate.open()
        for rows in (4, 5, 4, 7):
            x = torch.randn(rows, 6)
            torch.testing.assert_close(run(x), net(x))
    assert len(gate.threads) == 1


@WAYS
def test_gradients_of_both_tiers(way: Callable[[Any], Any], gate: Gate) -> None:
    net = _network()
    run = way(net)

    def check() -> None:
        x = torch.randn(4, 6)
        for function in (run, net):
            function(x).square().sum().backward()
        found = [parameter.grad for parameter in net.parameters()]
        net.zero_grad()
        net(x).square().sum().backward()
        for parameter, twice in zip(net.parameters(), found, strict=True):
            torch.testing.assert_close(twice, 2 * parameter.grad)
        net.zero_grad()

    check()
    check()
    gate.open()
    check()
    check()


def test_a_forward_pass_before_and_its_backward_pass_after(gate: Gate) -> None:
    net = _network()
    x = torch.randn(4, 6, requires_grad=True)
    (wanted,) = torch.autograd.grad(net(x).square().sum(), x)
    loss = mlcc.jit(net)(x).square().sum()
    gate.open()
    (found,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(found, wanted)


def test_the_core_takes_over(gate: Gate) -> None:
    net = _network()
    run = mlcc.jit(net)
    x = torch.randn(4, 6)
    with torch.no_grad():
        run(x)
        run(x)
        assert not found_in_core(run, x)
        gate.open()
        run(x)  # which finds that it is there
        assert found_in_core(run, x)
        torch.testing.assert_close(run(x), net(x))


@WAYS
def test_arguments_that_are_written(way: Callable[[Any], Any], gate: Gate) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return (x * 2).t()

    run = way(function)
    for number in range(4):
        if number == 2:
            gate.open()
        x, y = torch.randn(3, 4), torch.randn(3, 4)
        other = x.clone()
        torch.testing.assert_close(run(x, y), function(other, y))
        torch.testing.assert_close(x, other)


def _without_gradients(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return x * 2 + 1


def _in_f32(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", enabled=False):
        return x @ x


@WAYS
@pytest.mark.parametrize(
    "function", [_without_gradients, _in_f32, torch.mm], ids=lambda function: function.__name__
)
def test_modes_around_and_inside_of_a_call(
    function: Any, way: Callable[[Any], Any], gate: Gate
) -> None:
    run = way((lambda x: x @ x) if function is torch.mm else function)
    x = torch.randn(4, 4, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = function(x, x) if function is torch.mm else function(x)
        for number in range(4):
            if number == 2:
                gate.open()
            found = run(x)
            assert (found.dtype, found.requires_grad) == (expected.dtype, expected.requires_grad)
            torch.testing.assert_close(found, expected)


@WAYS
def test_a_parameter_that_is_written_where_no_gradients_are(
    way: Callable[[Any], Any], gate: Gate
) -> None:
    class Average(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.no_grad():
                self.weight.mul_(0.5).add_(x)
            return x + 1

    one, other = Average(), Average()
    run = way(one)
    for number in range(4):
        if number == 2:
            gate.open()
        x = torch.randn(3)
        torch.testing.assert_close(run(x), other(x))
        torch.testing.assert_close(one.weight, other.weight)


@WAYS
def test_sizes_that_floats_compute(way: Callable[[Any], Any], gate: Gate) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        side = int(math.sqrt(x.shape[0]))
        return x.view(side, side, -1).transpose(0, 2) * 2

    run = way(function)
    for number, rows in enumerate((16, 25, 16, 36)):
        if number == 2:
            gate.open()
        x = torch.randn(rows, 3)
        torch.testing.assert_close(run(x), function(x))


def test_a_graph_that_the_core_refuses_goes_on_eagerly(gate: Gate) -> None:
    gate.failure = GraphUnsupported("no code for it")
    run = mlcc.jit(lambda x: x.exp() + 1)
    x = torch.randn(5)
    torch.testing.assert_close(run(x), x.exp() + 1)
    gate.open()
    with pytest.warns(mlcc.EagerFallbackWarning, match="no code for it"):
        torch.testing.assert_close(run(x), x.exp() + 1)
    torch.testing.assert_close(run(x), x.exp() + 1)
    assert len(gate.threads) == 1


def test_a_fault_of_the_compiler_is_told_by_the_call_that_meets_it(gate: Gate) -> None:
    gate.failure = InternalError("broken")
    run = mlcc.jit(lambda x: x.exp() + 1)
    x = torch.randn(5)
    with mlcc.config.patch(strict=True):
        torch.testing.assert_close(run(x), x.exp() + 1)
        gate.open()
        with pytest.raises(mlcc.InternalError, match="broken"):
            run(x)


def test_what_has_no_room_op_by_op_waits(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: EagerRun, inputs: list[Any]) -> Any:
        inputs.clear()
        threading.Timer(0.05, gate.opened.set).start()
        raise RuntimeError("can't allocate memory")

    monkeypatch.setattr(EagerRun, "__call__", fail)
    x = torch.randn(5)
    torch.testing.assert_close(mlcc.jit(lambda x: x.exp() + 1)(x), x.exp() + 1)


def _function_that_draws(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.dropout(x, 0.5) + torch.rand_like(x)


@pytest.mark.parametrize(
    "options", [{"tier": "full"}, {"tier": "auto"}, {"verify": "first"}], ids=str
)
def test_what_waits_for_its_kernels(options: dict[str, Any], gate: Gate) -> None:
    gate.opened.set()
    with mlcc.config.patch(**options):
        mlcc.jit(lambda x: x.exp() + 1)(torch.randn(5))
    assert gate.threads == [threading.current_thread()]


def test_random_numbers_wait(gate: Gate) -> None:
    gate.opened.set()
    run = mlcc.jit(_function_that_draws)
    torch.manual_seed(1)
    first = run(torch.ones(50))
    torch.manual_seed(1)
    assert torch.equal(run(torch.ones(50)), first)
    assert set(gate.threads) == {threading.current_thread()}


def test_deterministic_algorithms_wait(gate: Gate) -> None:
    gate.opened.set()
    torch.use_deterministic_algorithms(True)
    try:
        mlcc.jit(lambda x: x.exp() + 1)(torch.randn(5))
    finally:
        torch.use_deterministic_algorithms(False)
    assert gate.threads == [threading.current_thread()]


def test_auto_waits_for_a_while(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large graph whose kernels come in time behaves as under `full`, one that takes longer as under `fast`."""
    monkeypatch.setattr(tiers, "_LEAST_NODES", 1)
    x = torch.randn(5)
    with mlcc.config.patch(tier="auto"):
        monkeypatch.setattr(tiers, "_PATIENCE", 60.0)
        threading.Timer(0.1, gate.opened.set).start()
        run = mlcc.jit(lambda x: x.exp() + 1)
        run(x)
        assert found_in_core(run, x)
        gate.opened.clear()
        monkeypatch.setattr(tiers, "_PATIENCE", 0.01)
        run = mlcc.jit(lambda x: x.exp() + 2)
        torch.testing.assert_close(run(x), x.exp() + 2)
        assert not found_in_core(run, x)


def test_threads_that_call_while_it_compiles(gate: Gate) -> None:
    net = _network()
    run = mlcc.jit(net)
    x = torch.randn(4, 6)
    wanted = net(x)
    failures: list[BaseException] = []

    def call() -> None:
        try:
            with torch.no_grad():
                for _ in range(300):
                    torch.testing.assert_close(run(x), wanted)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join()
    assert not failures


# -- results in the form that the trace told


def _graph(form: torch.Tensor, compute: Callable[[Any], Any], x: torch.Tensor) -> GraphModule:
    graph = Graph()
    node = graph.placeholder("x")
    node.meta["val"] = x
    result = graph.call_function(compute, (node,))
    result.meta["val"] = form
    graph.output((result, None, node))
    return GraphModule(torch.nn.Module(), graph)


def test_results_are_laid_out_as_the_trace_says() -> None:
    x = torch.randn(3, 4)
    run = EagerRun(_graph(torch.empty(4, 3).t(), torch.exp, x))
    inputs = [x]
    result, nothing, same = run(inputs)
    assert not inputs
    assert result.stride() == (1, 3)
    torch.testing.assert_close(result, x.exp())
    assert nothing is None
    assert same is x


def test_results_of_symbolic_sizes_are_laid_out_as_the_trace_says() -> None:
    fakes = tracing.Fakes()
    fake = fakes.tensor(0, torch.empty(6, 4), dynamic=True)
    with fakes.mode:
        form = fake.new_empty_strided(fake.shape, (1, fake.shape[0] * 2))
    run = EagerRun(_graph(form, torch.exp, fake))
    assert run.tells_strides
    for shape in ((6, 4), (5, 7), (1, 3)):
        x = torch.randn(shape)
        (result, *_) = run([x])
        torch.testing.assert_close(result, x.exp())
        assert result.stride() == (1, 2 * shape[0]) or 1 in shape


def test_strides_that_only_running_tells_are_left_alone() -> None:
    fakes = tracing.Fakes()
    fake = fakes.tensor(0, torch.empty(6, 4), dynamic=True)
    with fakes.mode:
        form = fake.new_empty((3, fakes.shape_env.create_unbacked_symint()))
    run = EagerRun(_graph(form, torch.exp, fake))
    assert not run.tells_strides
    x = torch.randn(3, 4)
    torch.testing.assert_close(run([x])[0], x.exp())


def test_strides_that_are_no_whole_numbers_are_left_alone() -> None:
    fakes = tracing.Fakes()
    fake = fakes.tensor(0, torch.empty(6, 4), dynamic=True)
    side = torch.sym_sqrt(fake.shape[0] * 6)
    with fakes.mode:
        form = fake.new_empty((3, int(side)))
    text = EagerRun(_graph(form, torch.exp, fake))
    x = torch.randn(3, 6)
    torch.testing.assert_close(text([x])[0], x.exp())


def test_results_of_another_rank_than_the_trace_says_are_left_alone() -> None:
    x = torch.randn(3, 4)
    run = EagerRun(_graph(torch.empty(2, 3, 4), torch.exp, x))
    torch.testing.assert_close(run([x])[0], x.exp())


def test_views_of_arguments_stay_views() -> None:
    x = torch.randn(3, 4)
    run = EagerRun(_graph(torch.empty(4, 3).t(), torch.Tensor.detach, x))
    (result, *_) = run([x])
    assert result.data_ptr() == x.data_ptr()


# -- processes that fork or end meanwhile

_PRELUDE = """
    import os, sys, threading, time, torch, mlcc
    from mlcc.capture import session
    compile_now, delay = session._compiled, float(sys.argv[1])
    def slowly(*args):
        began.set()
        time.sleep(delay)
        return compile_now(*args)
    session._compiled, began = slowly, threading.Event()
    torch.set_num_threads(1)
    run, x = mlcc.jit(lambda x: x.exp() + 1), torch.randn(5)
    assert torch.allclose(run(x), x.exp() + 1)
    assert began.wait(60)
"""


def _python(program: str, delay: float, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"MLCC_TIER": "fast", "MLCC_CACHE_DIR": str(tmp_path)}
    text = textwrap.dedent(_PRELUDE) + textwrap.dedent(program)
    return subprocess.run(
        [sys.executable, "-c", text, str(delay)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_process_that_ends_meanwhile(tmp_path: Path) -> None:
    for end in ("", "sys.exit(0)", "raise SystemExit(0)", "os._exit(0)"):
        done = _python(end, 0.2, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")


def test_an_exception_that_ends_the_program_is_told(tmp_path: Path) -> None:
    done = _python("raise ValueError('as planned')", 0.2, tmp_path)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: as planned\n")


def test_a_process_that_forks_meanwhile(tmp_path: Path) -> None:
    program = """
        import multiprocessing
        later = mlcc.jit(lambda x: x.sin() * 3)
        assert torch.allclose(later(x), x.sin() * 3)  # waits for its turn
        def child():
            for _ in range(3):
                assert torch.allclose(run(x), x.exp() + 1)
                assert torch.allclose(later(x), x.sin() * 3)
        processes = [multiprocessing.get_context("fork").Process(target=child) for _ in range(2)]
        for process in processes: process.start()
        for process in processes: process.join()
        print([process.exitcode for process in processes])
        child()
    """
    done = _python(program, 0.2, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "[0, 0]\n"


def test_a_second_process_finds_what_was_compiled_behind(tmp_path: Path) -> None:
    program = """
        while not mlcc.cache_info()['misses']: time.sleep(0.01)
        session._compiled = None
    """
    done = _python(program, 0.0, tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    again = textwrap.dedent("""
        import sys, torch, mlcc
        run, x = mlcc.jit(lambda x: x.exp() + 1), torch.randn(5)
        assert torch.allclose(run(x), x.exp() + 1)
        print(mlcc.cache_info()['misses'])
    """)
    environment = os.environ | {"MLCC_TIER": "fast", "MLCC_CACHE_DIR": str(tmp_path)}
    second = subprocess.run(
        [sys.executable, "-c", again], env=environment, capture_output=True, text=True, check=False
    )
    assert (second.returncode, second.stderr, second.stdout) == (0, "", "0\n")


@pytest.mark.parametrize("way", ["mlcc.jit", "by_compile"])
def test_a_backward_pass_that_was_stored_before_it_was_refused(way: str, tmp_path: Path) -> None:
    """The second process learns it in time."""
    program = f"""
        def by_compile(function): return torch.compile(function, backend="mlcc")
        from mlcc.ir.types import GraphUnsupported
        def refuse(core, source, options):
            text = source if isinstance(source, str) else source.print()
            if "@backward" in text:
                raise GraphUnsupported("no code for it")
            return compile_now(core, source, options)
        session._compiled = refuse
        class Core:
            def __getattr__(self, name): return getattr(real, name)
            def compile(self, source, options): return refuse(real, source, options)
        from mlcc.capture import compiled_graph
        real = compiled_graph.load_core()
        compiled_graph.load_core = Core
        x = torch.randn(4, 3, requires_grad=True)
        run = {way}(lambda x: x.sin() * x)
        for _ in range(3):
            x.grad = None
            run(x).sum().backward()
            torch.testing.assert_close(x.grad, (x.cos() * x + x.sin()).detach())
    """
    for _ in range(2):
        done = _python(program, 0.0, tmp_path)
        assert done.returncode == 0, done.stderr


def test_ctrl_c_while_a_fork_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fork waits on, and the program is interrupted after it."""
    told: list[Any] = []
    waits: list[int] = []
    worker = background._Worker()
    hold = threading.Event()
    worker.add(background.Job(lambda: hold.wait(60)), is_first=False)
    wait = worker._idle.wait

    def interrupted() -> bool:
        waits.append(1)
        if len(waits) < 3:
            raise KeyboardInterrupt
        hold.set()
        return wait(60)

    class Timer:
        def __init__(self, seconds: float, function: Any) -> None:
            told.append(function)

        def start(self) -> None: ...

    monkeypatch.setattr(worker._idle, "wait", interrupted)
    monkeypatch.setattr(threading, "Timer", Timer)
    worker.before_fork()
    assert len(waits) == 3
    assert not told
    worker.after_in_parent()
    assert len(told) == 1


# -- jobs


def test_a_job_that_is_interrupted_is_still_to_be_done() -> None:
    tries: list[int] = []

    def work() -> str:
        tries.append(1)
        if len(tries) == 1:
            raise KeyboardInterrupt
        return "done"

    job = background.Job(work)
    with pytest.raises(KeyboardInterrupt):
        job.result()
    assert not job.wait(0)
    assert job.result() == "done"


def test_the_traceback_of_a_failure_does_not_grow() -> None:
    def fail() -> None:
        raise ValueError("so")

    job = background.Job(fail)
    lengths = []
    for _ in range(3):
        with pytest.raises(ValueError, match="so") as caught:
            job.result()
        lengths.append(len(caught.traceback))
    assert lengths[0] == lengths[1] == lengths[2]


def test_jobs_are_done_in_order_and_once() -> None:
    done: list[int] = []
    jobs = [background.begin(functools.partial(done.append, number)) for number in range(5)]
    for job in jobs:
        job.result()
        job.result()
    assert done == [0, 1, 2, 3, 4]
    assert all(job.is_due() for job in jobs)


def test_what_a_job_raises_is_raised_for_who_asks() -> None:
    def fail() -> None:
        raise ValueError("so")

    job = background.begin(fail)
    for _ in range(2):
        with pytest.raises(ValueError, match="so"):
            job.result()


def test_who_needs_a_result_first_does_the_work() -> None:
    hold = threading.Event()
    first = background.begin(lambda: hold.wait(60))
    second = background.begin(threading.current_thread)
    assert not second.is_due()
    assert second.result() is threading.current_thread()
    hold.set()
    assert first.result()


def test_the_thread_ends_when_nothing_is_left() -> None:
    assert background.begin(lambda: None).wait(60)
    end = time.monotonic() + 60
    while any(one.name == "mlcc compiles" for one in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.001)
