"""Autograd around compiled functions: hooks, modes, custom functions, higher derivatives, transforms, checkpoints."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

from tests.python.behaviour import compiled, form_of, jitted

WAYS = pytest.mark.parametrize("way", [compiled, jitted])


def leaf(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradients(function: Callable[..., Any], *arguments: torch.Tensor) -> list[Any]:
    """Results and the gradients of all arguments that require them, by weights that differ per element."""
    own = [x.detach().clone().requires_grad_(x.requires_grad) for x in arguments]
    result = function(*own)
    results = result if isinstance(result, list | tuple) else [result]
    total = sum((y * torch.arange(1.0, y.numel() + 1).view_as(y)).sum() for y in results)
    total.backward()
    return [*(y.detach() for y in results), *(x.grad for x in own)]


def check_gradients(
    way: Callable[..., Any], function: Callable[..., Any], *arguments: torch.Tensor
) -> None:
    run = way(function)
    expected = gradients(function, *arguments)
    for _ in range(2):
        torch.testing.assert_close(gradients(run, *arguments), expected)


# -- which tensors take part


@WAYS
def test_who_requires_gradients(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x * y, y + 1, (x * 2).detach(), x > 0, x.argmax(), x[0]]

    run = way(function)
    for first, second in ((True, False), (False, True), (False, False), (True, True)):
        x = torch.randn(3, 4).requires_grad_(first)
        y = torch.randn(3, 4).requires_grad_(second)
        for ours, eagers in zip(run(x, y), function(x, y), strict=True):
            assert form_of(ours) == form_of(eagers)
            torch.testing.assert_close(ours, eagers)


@WAYS
def test_no_grad_outside_and_inside(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        with torch.no_grad():
            scale = x.abs().amax()
        with torch.no_grad(), torch.enable_grad():
            shifted = x + 1
        return [x / scale, shifted]

    check_gradients(way, function, leaf(3, 4))
    run = way(function)
    x = leaf(3, 4)
    with torch.no_grad():
        assert [y.requires_grad for y in run(x)] == [False, True]
    assert [y.requires_grad for y in run(x)] == [True, True]


@WAYS
def test_inference_mode(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp() * 2, x[1]]

    run = way(function)
    x = torch.randn(3, 4)
    with torch.inference_mode():
        inside = torch.randn(3, 4)
        for argument in (x, inside):
            for ours, eagers in zip(run(argument), function(argument), strict=True):
                assert ours.is_inference() == eagers.is_inference()
                torch.testing.assert_close(ours, eagers)
    for argument in (x, inside):
        for ours, eagers in zip(run(argument), function(argument), strict=True):
            assert ours.is_inference() == eagers.is_inference()
            torch.testing.assert_close(ours, eagers)


@WAYS
def test_gradients_of_some_results(way: Callable[..., Any]) -> None:
    """Those that nobody asked for cost nothing and are None."""

    def function(x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
        return [x.exp(), (y * 3).sum(), x * y]

    run = way(function)
    x, y = leaf(3), leaf(3)
    for place in range(3):
        found = torch.autograd.grad(run(x, y)[place].sum(), (x, y), allow_unused=True)
        expected = torch.autograd.grad(function(x, y)[place].sum(), (x, y), allow_unused=True)
        for ours, eagers in zip(found, expected, strict=True):
            if eagers is None:  # AOTAutograd gives zeros where eager gives None
                assert ours is None or not ours.any()
            else:
                torch.testing.assert_close(ours, eagers)


@WAYS
def test_the_graph_may_be_kept(way: Callable[..., Any]) -> None:
    x = leaf(4)
    y = way(lambda x: (x * x).exp())(x).sum()
    first = torch.autograd.grad(y, x, retain_graph=True)
    second = torch.autograd.grad(y, x)
    torch.testing.assert_close(first, second)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, x)


@WAYS
def test_an_argument_that_was_saved_is_written_later(way: Callable[..., Any]) -> None:
    x, y = leaf(4), torch.randn(4, dtype=torch.float64)
    result = way(lambda x, y: x * y)(x, y).sum()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


@WAYS
def test_an_intermediate_is_written(way: Callable[..., Any]) -> None:
    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = x * 2
        z.mul_(y)
        z[1:] += x[:-1]
        return z.exp() * z

    check_gradients(way, function, leaf(4, 3), leaf(4, 3))


def test_an_argument_that_is_no_leaf_is_written() -> None:
    """Under torch.compile AOTAutograd itself refuses the backward pass (torch 2.13)."""

    def function(z: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z.mul_(y)
        return z.exp()

    run = jitted(function)
    found = []
    for call in (run, function, run):
        torch.manual_seed(1)
        x, y = leaf(4), leaf(4)
        z = x * 2
        (call(z, y).sum() + z.sum()).backward()
        found.append([x.grad, y.grad, z.detach()])
    torch.testing.assert_close(found[0], found[1])
    torch.testing.assert_close(found[2], found[1])


# -- hooks


@WAYS
def test_hooks_on_arguments_and_results(way: Callable[..., Any]) -> None:
    def run_with_hooks(function: Callable[..., Any]) -> list[Any]:
        torch.manual_seed(1)
        x = leaf(3)
        calls: list[Any] = []
        x.register_hook(lambda g: calls.append(("x", g.tolist())))
        x.register_post_accumulate_grad_hook(lambda t: calls.append(("done", t.grad.tolist())))
        y = function(x)
        y.register_hook(lambda g: g * 10)
        y.retain_grad()
        y.sum().backward()
        return [calls, y.grad.tolist()]

    def function(x: torch.Tensor) -> torch.Tensor:
        return x * x

    assert run_with_hooks(way(function)) == run_with_hooks(function)


def test_hooks_inside() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.register_hook(lambda g: g * 3)
        return y.exp()

    check_gradients(compiled, function, leaf(4))


def test_hooks_of_modules() -> None:
    calls: list[str] = []
    module = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh()).double()
    module[0].register_forward_pre_hook(lambda m, a: (a[0] * 2,))
    module[1].register_forward_hook(lambda m, a, y: y + 1)
    module[0].register_full_backward_hook(lambda m, gi, go: calls.append("backward"))
    check_gradients(compiled, module, leaf(2, 3))
    check_gradients(jitted, module, leaf(2, 3))
    assert calls


# -- custom autograd functions


class Straight(torch.autograd.Function):
    """Rounds forward, the identity backward, scaled so that a test sees who ran."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return gradient * ctx.factor + x * 0, None


class Split(torch.autograd.Function):
    """Two results, one of them without a derivative."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        largest, place = x.max(1)
        ctx.mark_non_differentiable(place)
        ctx.save_for_backward(place)
        ctx.shape = x.shape
        return largest, place

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor, _: Any) -> torch.Tensor:
        (place,) = ctx.saved_tensors
        zeros = gradient.new_zeros(ctx.shape)
        return zeros.scatter(1, place[:, None], 5 * gradient[:, None])


def straight(x: torch.Tensor) -> torch.Tensor:
    return Straight.apply(x * 2, 3.0).exp()


def split(x: torch.Tensor) -> torch.Tensor:
    largest, place = Split.apply(x)
    return largest * place


@pytest.mark.parametrize("function", [straight, split])
def test_custom_functions(function: Callable[..., Any]) -> None:
    check_gradients(compiled, function, leaf(4, 5))


class Holding(torch.nn.Module):
    """What mlcc.jit may read by name."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return straight(x)


def test_custom_functions_under_jit() -> None:
    check_gradients(jitted, Holding(), leaf(4, 5))


# -- higher derivatives


def penalty(run: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(run(x).sum(), x, create_graph=True)
    return gradient.square().sum()


@WAYS
def test_double_backward_is_aots_error(way: Callable[..., Any]) -> None:
    """AOTAutograd's backward cannot be differentiated, and says so."""
    x = leaf(4)
    with pytest.raises(RuntimeError, match="double backward"):
        penalty(way(lambda x: x.sin().exp()), x).backward()


def test_double_backward_inside() -> None:
    """The derivative is part of what is compiled."""

    def function(x: torch.Tensor) -> torch.Tensor:
        gradient = torch.func.grad(lambda x: (x.sin() * x).sum())(x)
        return gradient.square()

    check_gradients(compiled, function, leaf(4))


# -- torch.func


def cube(x: torch.Tensor) -> torch.Tensor:
    return (x.tanh() * x * x).sum()


TRANSFORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "grad": lambda x: torch.func.grad(cube)(x),
    "vmap": lambda x: torch.func.vmap(lambda row: row.softmax(0) * row.sum())(x),
    "vmap of grad": lambda x: torch.func.vmap(torch.func.grad(cube))(x),
    "vmap over columns": lambda x: torch.func.vmap(lambda c: c / c.norm(), in_dims=1)(x),
    "jvp": lambda x: torch.func.jvp(lambda x: x.sin() * x, (x,), (torch.ones_like(x),))[1],
    "vjp": lambda x: torch.func.vjp(lambda x: x.exp() * x, x)[1](torch.ones_like(x))[0],
    "jacrev": lambda x: torch.func.jacrev(lambda x: x.sin() * x.sum())(x[0]),
    "jacfwd": lambda x: torch.func.jacfwd(lambda x: x.sin() * x.sum())(x[0]),
    "hessian": lambda x: torch.func.hessian(cube)(x[0]),
    "grad of grad": lambda x: torch.func.grad(lambda y: torch.func.grad(cube)(y).sum())(x),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside(name: str) -> None:
    function = TRANSFORMS[name]
    x = torch.randn(3, 4, dtype=torch.float64)
    torch.testing.assert_close(compiled(function)(x), function(x))


@pytest.mark.parametrize("name", ["grad", "vmap", "vmap of grad", "jvp", "vjp"])
def test_transforms_of_compiled_functions(name: str) -> None:
    """mlcc.jit steps aside under a transform, so that the function itself is transformed."""

    def function(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * x.sum()

    transforms: dict[str, Callable[..., Any]] = {
        "grad": lambda f, x: torch.func.grad(lambda x: f(x).sum())(x),
        "vmap": lambda f, x: torch.func.vmap(f)(x),
        "vmap of grad": lambda f, x: torch.func.vmap(torch.func.grad(lambda x: f(x).sum()))(x),
        "jvp": lambda f, x: torch.func.jvp(f, (x,), (x * 2,))[1],
        "vjp": lambda f, x: torch.func.vjp(f, x)[1](x)[0],
    }
    transform = transforms[name]
    x = torch.randn(3, 4, dtype=torch.float64)
    run = jitted(function)
    run(x)
    torch.testing.assert_close(transform(run, x), transform(function, x))


@WAYS
@pytest.mark.parametrize("is_called_before", [False, True])
def test_forward_mode_derivatives(way: Callable[..., Any], is_called_before: bool) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x.exp() * x

    x, t = torch.randn(4), torch.randn(4)
    run = way(function)
    if is_called_before:
        run(x)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, t)
        ours = torch.autograd.forward_ad.unpack_dual(run(dual))
        eagers = torch.autograd.forward_ad.unpack_dual(function(dual))
    torch.testing.assert_close(ours.tangent, eagers.tangent)


# -- checkpoints, saved tensors


OVERWRITTEN = {
    "embedding": lambda x, c: F.embedding(torch.tensor([2, 0, 1]), c) * x,
    "flip": lambda x, c: c.flip(0) * x,
    "softmax": lambda x, c: (c.softmax(-1) * x).sin(),
    "product": lambda x, c: (c * 2 * x).sin(),
}


@WAYS
@pytest.mark.parametrize("name", OVERWRITTEN)
def test_what_is_read_and_then_overwritten(way: Callable[..., Any], name: str) -> None:
    """Gradients need what was read; torch's partition would compute it again from what was written."""
    read = OVERWRITTEN[name]

    def function(x: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
        y = read(x, c)
        c.mul_(2)
        return y

    check_gradients(way, function, leaf(3, 3), torch.randn(3, 3, dtype=torch.float64))


def block(x: torch.Tensor) -> torch.Tensor:
    return torch.sigmoid(x * x.sin()) @ x.t()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoints(reentrant: bool) -> None:
    check_gradients(
        compiled, lambda x: checkpoint(block, x, use_reentrant=reentrant).exp(), leaf(3, 3)
    )


@WAYS
def test_a_compiled_function_is_checkpointed(way: Callable[..., Any]) -> None:
    run, x = way(block), leaf(3, 3)
    found = gradients(lambda x: checkpoint(run, x, use_reentrant=False), x)
    torch.testing.assert_close(found, gradients(block, x))


def test_saved_tensor_hooks_outside() -> None:
    """Packing what is saved changes no gradient; it is seen."""
    packed: list[tuple[int, ...]] = []

    def pack(x: torch.Tensor) -> torch.Tensor:
        packed.append(tuple(x.shape))
        return x * 1

    x = leaf(3, 4)
    run = compiled(lambda x: (x.exp() * x.sin()).sum(1))
    expected = torch.autograd.grad((x.exp() * x.sin()).sum(), x)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        total = run(x).sum()
    torch.testing.assert_close(torch.autograd.grad(total, x), expected)
    assert (3, 4) in packed


def saved_bytes(run: Callable[..., Any], *arguments: torch.Tensor) -> int:
    """Bytes of the distinct tensors kept for the backward pass."""
    kept: dict[int, int] = {}

    def pack(x: torch.Tensor) -> torch.Tensor:
        storage = x.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        result = run(*arguments)
    del result
    return sum(kept.values())


def mlp(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (F.gelu(x @ w) @ v).softmax(-1)


def norms(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = F.layer_norm(x, (x.shape[1],)) @ w
    return F.rms_norm(F.silu(y) * torch.sigmoid(y), (y.shape[1],)) @ v


def attention(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = (x @ w).view(4, 4, -1)
    return F.scaled_dot_product_attention(y, y, y).flatten(1).tanh()


def gates(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    y = (x @ w).unflatten(1, (4, 16)).transpose(1, 2)
    y = F.hardswish(y) * F.leaky_relu(y).tanh()
    a, b = y.index_select(2, torch.tensor([3, 1, 0, 2], device=y.device)).split([2, 2], 2)
    return (a * F.softplus(b)).flatten(1) @ v.view(32, 16)


@pytest.mark.parametrize("function", [mlp, norms, attention, gates])
def test_no_more_is_saved_than_the_min_cut(function: Callable[..., Any]) -> None:
    """As much as a trace by the same partitioner saves with TorchInductor's decompositions, or less."""
    from functorch.compile import (
        aot_function,
        make_boxed_compiler,
        min_cut_rematerialization_partition,
    )
    from torch._inductor.decomposition import select_decomp_table

    arguments = [torch.randn(s, requires_grad=True) for s in ((16, 32), (32, 64), (64, 8))]
    reference = aot_function(
        function,
        fw_compiler=make_boxed_compiler(lambda gm, _: gm),
        partition_fn=min_cut_rematerialization_partition,
        decompositions=select_decomp_table(),
    )
    allowed = saved_bytes(reference, *arguments)
    for run in (compiled(function), jitted(function)):
        assert saved_bytes(run, *arguments) <= allowed
        torch.testing.assert_close(run(*arguments), function(*arguments))
    assert allowed <= saved_bytes(function, *arguments)


# -- state that training changes


def test_batch_norm_in_training_and_evaluation() -> None:
    def make() -> torch.nn.Module:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Tanh())

    modules = [make(), make()]
    runs = [modules[0], compiled(modules[1])]
    for step in range(4):
        found = []
        for module, run in zip(modules, runs, strict=True):
            module.train(step != 2)
            module.zero_grad()
            x = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
            y = run(x)
            y.square().sum().backward()
            buffers = [b.clone() for b in module.buffers()]
            found.append([y.detach(), *(p.grad for p in module.parameters()), *buffers])
        torch.testing.assert_close(found[0], found[1])
    assert modules[1][1].num_batches_tracked == 3


class Averaging(torch.nn.Module):
    """Keeps an average of what it saw, and counts."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.average.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        self.count += 1
        return x - self.average


@WAYS
def test_buffers_are_updated(way: Callable[..., Any]) -> None:
    ours, eagers = Averaging(), Averaging()
    run = way(ours)
    for _ in range(3):
        x = torch.randn(4, 3)
        torch.testing.assert_close(run(x), eagers(x))
    torch.testing.assert_close(ours.average, eagers.average)
    assert ours.count == 3


def test_anomaly_detection() -> None:
    x = torch.zeros(3, requires_grad=True)
    run = compiled(lambda x: (x * 0).sqrt() * 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
            run(x).sum().backward()


@WAYS
@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x * 2).unfold(0, 2, 1),
        lambda x: (x * 2).as_strided((3, 2), (1, 1)),
        lambda x: (x * 2).expand(3, 4),
    ],
)
def test_gradients_of_results_that_overlap_themselves(
    function: Callable[..., torch.Tensor], way: Callable[..., Any]
) -> None:
    x = torch.ones(4, requires_grad=True)
    expected, found = function(x), way(function)(x)
    weights = torch.arange(expected.numel()).view(expected.shape) + 1.0
    (theirs,) = torch.autograd.grad(expected, x, weights)
    (ours,) = torch.autograd.grad(found, x, weights)
    assert found.stride() == expected.stride()
    torch.testing.assert_close(ours, theirs)


def test_hardswish_at_nan() -> None:
    """Neither below -3 nor below 3: the gradient of the result, as in eager."""
    x = torch.tensor([math.nan, -4.0, -3.0, -1.0, 3.0, 5.0], requires_grad=True)
    grad = torch.full_like(x, -1.5)
    found = torch.autograd.grad(compiled(F.hardswish)(x), x, grad)
    torch.testing.assert_close(found, torch.autograd.grad(F.hardswish(x), x, grad))
