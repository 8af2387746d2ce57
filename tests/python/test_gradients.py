"""Calls of mlcc.jit that the core runs with a node of its own in autograd's graph, beside eager's."""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import mlcc
from mlcc.torch_private import patches
from tests.python.behaviour import form_of, jitted


def leaf(*shape: int, **options: Any) -> torch.Tensor:
    return torch.randn(shape, requires_grad=True, **options)


def tensors_of(result: Any) -> list[torch.Tensor]:
    return [x for x in torch.utils._pytree.tree_leaves(result) if isinstance(x, torch.Tensor)]


def is_in_core(result: Any) -> bool:
    """Whether the call went past AOTAutograd's autograd function."""
    nodes = [x.grad_fn for x in tensors_of(result) if x.requires_grad]
    return bool(nodes) and all(type(node).__name__ == "CppFunction" for node in nodes)


def called_once(function: Callable[..., Any], *arguments: Any) -> Callable[..., Any]:
    """Jitted, traced and with a backward graph; the next call is the core's."""
    run = jitted(function)
    total = sum(x.sum() for x in tensors_of(run(*arguments)) if x.requires_grad)
    total.backward()
    for x in (
        *arguments,
        *(function.parameters() if isinstance(function, torch.nn.Module) else ()),
    ):
        if isinstance(x, torch.Tensor):
            x.grad = None
    return run


def step(function: Callable[..., Any], arguments: list[Any], extra: list[Any]) -> list[Any]:
    """Results and gradients by weights that differ per element, with their forms."""
    results = function(*arguments)
    found = tensors_of(results)
    weights = [torch.arange(1.0, y.numel() + 1).view_as(y).to(y.dtype) for y in found]
    torch.autograd.backward(
        [y for y in found if y.requires_grad],
        [w for y, w in zip(found, weights, strict=True) if y.requires_grad],
    )
    gradients = [x.grad for x in tensors_of([arguments, extra])]
    for x in tensors_of([arguments, extra]):
        x.grad = None
    plain = torch.utils._pytree.tree_map(
        lambda y: y.detach() if isinstance(y, torch.Tensor) else y, results
    )
    return [
        plain,
        gradients,
        [form_of(y) for y in found],
        [g if g is None else form_of(g) for g in gradients],
        is_in_core(results),
    ]


def two_layers() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def tied() -> torch.nn.Module:
    module = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4))
    module[2].weight = module[0].weight
    return module


def with_batch_norm() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3)).double()


CASES: dict[str, tuple[Any, Callable[[], list[Any]]]] = {
    "pointwise": (lambda x, y: (x * y).tanh(), lambda: [leaf(3, 4), leaf(3, 4)]),
    "one of two": (lambda x, y: (x * y).tanh(), lambda: [leaf(3, 4), torch.randn(3, 4)]),
    "product": (lambda x, w: (x @ w).relu(), lambda: [torch.randn(3, 4), leaf(4, 2)]),
    "unused": (lambda x, y: x.exp(), lambda: [leaf(3), leaf(3)]),
    "no gradient through it": (lambda x, y: x * y.detach(), lambda: [leaf(3), leaf(3)]),
    "indices too": (lambda x: x.max(1), lambda: [leaf(3, 4)]),
    "masks too": (lambda x: (x > 0, x * 2, (x * 3).detach()), lambda: [leaf(3, 4)]),
    "numbers and None": (
        lambda x: {"y": x * 2, "n": x.shape[0] * 2, "no": None},
        lambda: [leaf(3)],
    ),
    "twice the same": (lambda x: [y := x.exp(), y], lambda: [leaf(3)]),
    "twice as much": (lambda x: [x * 2, x * 2], lambda: [leaf(3)]),
    "saved result": (lambda x: [x.exp(), x.sigmoid()], lambda: [leaf(3, 4)]),
    "no dimension": (lambda x, y: (x * y).sum(), lambda: [leaf(), leaf(3)]),
    "no element": (lambda x, y: (x * y).sin(), lambda: [leaf(0, 4), leaf(4)]),
    "float": (lambda x, s: (x * s).sin(), lambda: [leaf(3), 0.7]),
    "int": (lambda x, n: (x * n).sin(), lambda: [leaf(3), 5]),
    "transposed": (lambda x: x.t().sin() * 2, lambda: [leaf(3, 4)]),
    "transposed argument": (lambda x: x.sin(), lambda: [torch.randn(4, 3).t().requires_grad_()]),
    "view of an intermediate": (lambda x: (x * 2).t(), lambda: [leaf(3, 4)]),
    "expanded result": (lambda x: (x * 2)[:, None].expand(3, 4), lambda: [leaf(3)]),
    "images": (
        lambda x, w: torch.nn.functional.conv2d(x, w).relu(),
        lambda: [
            leaf(2, 3, 6, 6).detach().to(memory_format=torch.channels_last).requires_grad_(),
            leaf(4, 3, 3, 3),
        ],
    ),
    "no leaf": (lambda x: x.sin(), lambda: [leaf(3)[1:]]),
    "bf16": (lambda x: x.sin(), lambda: [leaf(3, dtype=torch.bfloat16)]),
    "complex beside it": (lambda x, z: (x.sin(), z * 2), lambda: [leaf(3), torch.randn(3) * 1j]),
    "constant": (lambda x: x * torch.tensor([1.0, 2.0, 3.0]), lambda: [leaf(3)]),
    "dict": (lambda d: {"a": d["x"] * d["y"]}, lambda: [{"x": leaf(3), "y": leaf(3)}]),
    "given twice": (lambda p: p[0] * p[1], lambda: [[leaf(3)] * 2]),
    "module": (two_layers, lambda: [torch.randn(3, 4)]),
    "module and argument": (two_layers, lambda: [leaf(3, 4)]),
    "tied parameters": (tied, lambda: [torch.randn(3, 4)]),
    "buffers that are updated": (with_batch_norm, lambda: [leaf(6, 4, dtype=torch.float64)]),
}


@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str) -> None:
    function, make = CASES[name]
    is_module = function in (two_layers, tied, with_batch_norm)
    found = []
    for way in (lambda f: f, jitted):
        torch.manual_seed(0)
        original = function() if is_module else function
        run = way(original)
        extra = list(original.parameters()) if is_module else []
        torch.manual_seed(1)
        found.append([step(run, make(), extra) for _ in range(3)])
        if is_module:
            found[-1].append([b.clone() for b in original.buffers()])
    for eagers, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours[:2], eagers[:2], equal_nan=True)
        assert ours[2:4] == eagers[2:4]
    assert [one[-1] for one in found[1][:3]] == [False, True, True]


OUTSIDE: dict[str, tuple[Callable[..., Any], Callable[[], list[Any]]]] = {
    "view of an argument": (lambda x: (x[1:], x * 2), lambda: [leaf(3)]),
    "an argument": (lambda x: (x, x * 2), lambda: [leaf(3)]),
    "views of one": (lambda x: [(y := x * 2)[1:], y], lambda: [leaf(3)]),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_what_stays_with_aots_function(name: str) -> None:
    function, make = OUTSIDE[name]
    run = jitted(function)
    for _ in range(3):
        arguments = make()
        ours, eagers = step(run, arguments, []), step(function, arguments, [])
        torch.testing.assert_close(ours[:2], eagers[:2])
        assert not ours[-1]


def test_stolen_weights_stay_with_aots_function() -> None:
    layer = torch.nn.Linear(4, 4)
    with mlcc.config.patch(weights="steal"):
        run = mlcc.jit(layer)
        for _ in range(2):
            result = run(leaf(2, 4))
            result.sum().backward()
    assert not is_in_core(result)


def test_without_torchs_compiler_of_backward_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(patches, "keeping_backward_compilers", lambda: contextlib.nullcontext([]))
    x = leaf(3)
    run = called_once(lambda x: x.sin(), x)
    assert not is_in_core(run(x))


# -- sizes and modes


def test_sizes_change() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).softmax(-1).mean(0)

    run = called_once(function, leaf(3, 4), leaf(4))
    for rows, columns in ((5, 4), (2, 7), (9, 3)):
        arguments = [leaf(rows, columns), leaf(columns)]
        ours, eagers = step(run, arguments, []), step(function, arguments, [])
        torch.testing.assert_close(ours[:2], eagers[:2])
        assert ours[2:4] == eagers[2:4]
        assert ours[-1]


def test_modes_have_traces_of_their_own() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    run = called_once(lambda x, w: (x @ w).sin(), x, w)
    with torch.no_grad():
        assert not run(x, w).requires_grad
    with torch.inference_mode():
        assert run(x, w).is_inference()
    assert not run(x.detach(), w.detach()).requires_grad
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            y = run(x, w)
        assert y.dtype == torch.bfloat16
        y.sum().backward()
        assert x.grad.dtype == torch.float32
    assert is_in_core(y)
    assert run(x, w).dtype == torch.float32


def test_autocast_around_the_backward_pass() -> None:
    x, w = leaf(4, 4), leaf(4, 4)
    run = called_once(lambda x, w: (x @ w).sin(), x, w)
    y = run(x, w)
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(y.sum(), (x, w))
    torch.testing.assert_close(found, torch.autograd.grad((x @ w).sin().sum(), (x, w)))


def test_deterministic_algorithms() -> None:
    x = leaf(3)
    run = called_once(lambda x: x.sin(), x)
    y = run(x)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            y.sum().backward()
        for _ in range(2):
            y = run(x)
            y.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    assert is_in_core(y)


# -- the backward pass


def test_gradients_of_some_results() -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp(), (y * 3).sum(), x * y]

    x, y = leaf(3), leaf(3)
    run = called_once(function, x, y)
    for place in range(3):
        results = run(x, y)
        assert is_in_core(results)
        found = torch.autograd.grad(results[place].sum(), (x, y), allow_unused=True)
        expected = torch.autograd.grad(function(x, y)[place].sum(), (x, y), allow_unused=True)
        for ours, eagers in zip(found, expected, strict=True):
            torch.testing.assert_close(ours, torch.zeros(3) if eagers is None else eagers)


def test_unused_arguments() -> None:
    x, y = leaf(3), leaf(3)
    run = called_once(lambda x, y: x.exp(), x, y)
    assert torch.autograd.grad(run(x, y).sum(), (x, y), allow_unused=True)[1] is None
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        torch.autograd.grad(run(x, y).sum(), y)


@pytest.mark.parametrize(
    "make",
    [
        lambda y: torch.ones(()).expand_as(y),
        lambda y: torch.randn(y.shape[::-1]).t(),
        lambda y: torch.randn(*y.shape, 2)[..., 0],
        lambda y: torch._efficientzerotensor(y.shape),
        lambda y: torch._neg_view(torch.randn_like(y)),
    ],
)
def test_gradients_of_any_layout(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x

    x = leaf(3, 4)
    run = called_once(function, x)
    y = run(x)
    gradient = make(y.detach())
    found, expected = (torch.autograd.grad(z, x, gradient) for z in (y, function(x)))
    torch.testing.assert_close(found, expected)


def test_the_graph_is_kept_and_freed() -> None:
    x = leaf(4)
    y = called_once(lambda x: (x * x).exp(), x)(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad(y, x), first)
    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        torch.autograd.grad(y, x)


def test_double_backward() -> None:
    x, w = leaf(4), leaf(4)
    run = called_once(lambda x, w: (x * w).sin(), x, w)
    weights = leaf(4)
    first, second = torch.autograd.grad(run(x, w), (x, w), weights, create_graph=True)
    assert first.requires_grad
    for sought in (x, w, weights):
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            torch.autograd.grad(first.sum() + second.sum(), sought, retain_graph=True)
    torch.testing.assert_close(first.detach(), weights * w * (x * w).cos())


def test_a_gradient_that_is_returned_as_it_was_given() -> None:
    x, given = leaf(3), torch.ones(3)
    run = called_once(lambda x: x + 1, x)
    (found,) = torch.autograd.grad(run(x), x, given, create_graph=True)
    assert found.requires_grad
    assert not given.requires_grad


def test_gradients_accumulate() -> None:
    x = leaf(3, 4)
    run = called_once(lambda x, y: (x + y).sum(0), x, leaf(3, 4))
    y = leaf(3, 4)
    for _ in range(3):
        run(x, y).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((3, 4), 3.0))
    assert x.grad.data_ptr() != y.grad.data_ptr()


def test_many_calls_in_one_graph() -> None:
    x, w = torch.randn(3), leaf(3)
    run = called_once(lambda x, w: (x * w).tanh(), x, w)
    found = []
    for function in (run, lambda x, w: (x * w).tanh()):
        y = x
        for _ in range(1000):
            y = function(y, w)
        found.append(torch.autograd.grad(y.sum(), w)[0])
        del y
    torch.testing.assert_close(found[0], found[1])


# -- what is saved


def test_saved_tensor_hooks() -> None:
    packed: list[torch.Size] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(x.shape)
        return x * 1

    x = leaf(3, 4)
    run = called_once(lambda x: (x.exp() * x.sin()).sum(1), x)
    expected = torch.autograd.grad(run(x).sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        y = run(x)
    assert is_in_core(y)
    assert torch.Size((3, 4)) in packed
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), expected)
    with torch.autograd.graph.save_on_cpu():
        y = run(x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), expected)
    with torch.autograd.graph.disable_saved_tensors_hooks("none here"):
        run(x).sum().backward()


@pytest.mark.parametrize("place", ["argument", "result"])
def test_what_was_saved_is_written(place: str) -> None:
    x, y = leaf(4), torch.randn(4)
    run = called_once(lambda x, y: (x * y).exp(), x, y)
    result = run(x, y)
    assert is_in_core(result)
    (y if place == "argument" else result).mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_results_are_written() -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x + 1, (x * 2).t()]

    x = leaf(3, 4)
    run = called_once(function, x)
    found = []
    for call in (run, function):
        first, second = call(x)
        first.mul_(3)
        second[0] = 0
        found.append(torch.autograd.grad((first * 2).sum() + second.sum(), x))
    torch.testing.assert_close(found[0], found[1])


def test_a_checkpoint_around() -> None:
    x = leaf(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x * x.sin()) @ x.t()

    run = called_once(function, x)
    y = checkpoint(run, x, use_reentrant=False)
    expected = torch.autograd.grad(function(x).sum(), x)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x), expected)


# -- hooks, anomalies


def test_hooks() -> None:
    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x * w).sin()

    def calls_of(function: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(1)
        x, w = leaf(3), torch.nn.Parameter(torch.randn(3))
        calls: list[Any] = []
        x.register_hook(lambda g: calls.append(g.tolist()))
        w.register_hook(lambda g: g * 2)
        w.register_post_accumulate_grad_hook(lambda t: calls.append(t.grad.tolist()))
        y = function(x, w)
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
        y.grad_fn.register_prehook(lambda g: (g[0] + 1,))
        y.grad_fn.register_hook(lambda gi, go: calls.append(go[0].tolist()))
        y.sum().backward()
        return [calls, x.grad.tolist(), w.grad.tolist(), y.grad.tolist()]

    run = called_once(function, leaf(3), torch.nn.Parameter(torch.randn(3)))
    # In eager the hooks of the node would be those of `sin` alone.
    calls, *found = calls_of(run)
    torch.manual_seed(1)
    x, w = torch.randn(3), torch.randn(3)
    slope = 11 * (x * w).cos()
    expected = [w * slope, 2 * x * slope, torch.full((3,), 10.0)]
    torch.testing.assert_close([torch.tensor(one) for one in found], expected)
    assert len(calls) == 3


def test_detached_results() -> None:
    x = leaf(3)
    y = called_once(lambda x: x.exp(), x)(x)
    assert y.detach().grad_fn is None
    assert not y.is_leaf
    assert y.grad_fn.name() == "CompiledFunctionBackward"


def test_anomalies() -> None:
    x = leaf(3)
    run = called_once(lambda x: (x * 0).sqrt() * 1, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly():
            y = run(x)
            assert is_in_core(y)
            with pytest.raises(RuntimeError, match="nan values"):
                y.sum().backward()


def test_batches_of_gradients_are_refused() -> None:
    x = leaf(3)
    y = called_once(lambda x: x.sin(), x)(x)
    with pytest.raises(RuntimeError, match="compiled backward function within"):
        torch.autograd.grad(y, x, torch.eye(3), is_grads_batched=True)


def test_compiled_autograd_is_refused() -> None:
    x = leaf(3)
    y = called_once(lambda x: x.sin(), x)(x)
    with (
        torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")),
        pytest.raises(RuntimeError, match=r"the backward pass of an mlcc\.jit"),
    ):
        y.sum().backward()


# -- the first backward pass


def test_a_backward_graph_is_compiled_when_a_node_of_the_core_asks() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp()

    run, x = jitted(function), leaf(3)
    run(x)
    results = [run(x) for _ in range(4)]
    assert is_in_core(results)
    found: list[Any] = [None] * 4

    def backward(place: int) -> None:
        found[place] = torch.autograd.grad(results[place].sum(), x)[0]

    threads = [threading.Thread(target=backward, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for one in found:
        torch.testing.assert_close(one, x.detach().exp())


def test_a_backward_graph_that_python_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlcc.capture import gradients

    monkeypatch.setattr(gradients, "_is_native", lambda *_: False)
    x = leaf(3)
    run = called_once(lambda x, s: (x * s).sin(), x, 0.5)
    y = run(x, 0.7)
    assert is_in_core(y)
    (found,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(found, 0.7 * (x.detach() * 0.7).cos())


def test_errors_of_the_compiler_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlcc.capture import session

    x = leaf(3)
    run = jitted(lambda x: x.exp())
    run(x)
    y = run(x)

    def refuse(self: Any) -> Any:
        raise mlcc.Error("refused")

    with monkeypatch.context() as context:
        context.setattr(session.Session, "compile_backward", refuse)
        with pytest.raises(mlcc.Error, match="refused"):
            y.sum().backward(retain_graph=True)
    y.sum().backward()
    torch.testing.assert_close(x.grad, x.detach().exp())


# -- threads, processes, memory


def test_threads() -> None:
    module = two_layers()
    run = called_once(module, torch.randn(3, 4))
    failures: list[Any] = []

    def work() -> None:
        for rows in range(1, 20):
            x = leaf(rows, 4)
            (ours,) = torch.autograd.grad(run(x).sum(), x)
            (eagers,) = torch.autograd.grad(module(x).sum(), x)
            if not torch.allclose(ours, eagers, atol=1e-5):
                failures.append(rows)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_fork() -> None:
    x = leaf(3)
    run = called_once(lambda x: x.sin(), x)
    y = run(x)
    child = os.fork()
    if child == 0:
        (before,) = torch.autograd.grad(y.sum(), x)
        (after,) = torch.autograd.grad(run(x).sum(), x)
        os._exit(0 if torch.equal(before, after) else 1)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("is_compiled", [False, True])
def test_nothing_is_kept(is_compiled: bool) -> None:
    """Neither by the trace nor by a result that the module holds; a result outlives the trace."""
    module = two_layers()
    run = mlcc.jit(module)
    x = leaf(3, 4)
    for _ in range(2):
        y = run(x)
    if is_compiled:
        y.sum().backward(retain_graph=True)
    assert is_in_core(y)
    gone = weakref.ref(module)
    module.kept = [run(x)]
    del run, module
    gc.collect()
    assert gone() is None
    y.sum().backward()


def test_saved_memory_is_freed_as_the_backward_pass_runs() -> None:
    x = leaf(3)
    y = called_once(lambda x: x.exp() * 2, x)(x * 1)
    saved: list[Any] = []

    def pack(tensor: torch.Tensor) -> Any:
        held = tensor.detach()
        saved.append(weakref.ref(held))
        return held

    run = called_once(lambda x: x.exp() * 2, x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda held: held):
        y = run(x)
    assert saved
    y.sum().backward()
    assert all(one() is None for one in saved)
