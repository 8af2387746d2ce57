"""Values of parameters, buffers and constants alone: computed once, kept, and computed again when those change."""

import copy
import functools
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch

import mlcc
from tests.python.threads import at_once

Log = Callable[..., AbstractContextManager[list[str]]]
COUNTERS = ("packs", "pack_bytes", "pack_hits", "pack_misses")


pytestmark = pytest.mark.usefixtures("nothing_kept")


def packs() -> dict[str, int]:
    info = mlcc.cache_info()
    return {name: info[name] for name in COUNTERS}


class Work:
    """What the calls in a `with` block found and computed."""

    def __enter__(self) -> "Work":
        self._before = packs()
        return self

    def __exit__(self, *_: object) -> None:
        after = packs()
        self.hits = after["pack_hits"] - self._before["pack_hits"]
        self.misses = after["pack_misses"] - self._before["pack_misses"]


class Weights(torch.nn.Module):
    """A weight that is transformed, a buffer that is, and a bias that is read as it is."""

    def __init__(self, size: int = 96) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(size, size))
        self.bias = torch.nn.Parameter(torch.randn(size))
        self.register_buffer("scale", torch.rand(size))
        self.scale: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ (self.weight * torch.exp(self.scale)) + self.bias


def compilers() -> list[Any]:
    return [
        pytest.param(mlcc.jit, id="jit"),
        pytest.param(lambda f: torch.compile(f, backend="mlcc"), id="compile"),
    ]


@pytest.fixture(params=compilers())
def compiler(request: pytest.FixtureRequest) -> Callable[..., Any]:
    compiled: Callable[..., Any] = request.param
    return compiled


def check(compiled: Any, module: Any, x: torch.Tensor) -> None:
    torch.testing.assert_close(compiled(x), module(x), rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_the_second_call_computes_nothing_again(compiler: Any) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = compiler(module)
    with Work() as first:
        check(compiled, module, x)
    assert (first.hits, first.misses) == (0, 1)
    with Work() as second:
        check(compiled, module, x)
    assert (second.hits, second.misses) == (1, 0)
    assert packs()["packs"] == 1
    assert packs()["pack_bytes"] >= 96 * 96 * 4


def data_copy(module: Weights) -> None:
    module.weight.data.copy_(torch.randn_like(module.weight))


def ema(module: Weights) -> None:
    module.weight.data.mul_(0.9).add_(torch.randn_like(module.weight), alpha=0.1)


def numpy_write(module: Weights) -> None:
    module.weight.detach().numpy()[:] = 2.0


def in_place(module: Weights) -> None:
    module.weight.add_(1)


def of_a_buffer(module: Weights) -> None:
    module.scale.data[7] = 3


def new_data(module: Weights) -> None:
    module.weight.data = torch.randn(96, 96)


def new_parameter(module: Weights) -> None:
    module.weight = torch.nn.Parameter(torch.randn(96, 96))


def load(module: Weights) -> None:
    module.load_state_dict(Weights().state_dict())


def assigned(module: Weights) -> None:
    module.load_state_dict(Weights().state_dict(), assign=True)


def resized_storage(module: Weights) -> None:
    storage = module.weight.untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    storage.resize_(size)
    module.weight.data.fill_(0.5)


CHANGES = [
    data_copy,
    ema,
    numpy_write,
    in_place,
    of_a_buffer,
    new_data,
    new_parameter,
    load,
    assigned,
    resized_storage,
]


@pytest.mark.parametrize("change", CHANGES)
@torch.no_grad()
def test_a_change_is_seen(compiler: Any, change: Callable[[Weights], None]) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = compiler(module)
    check(compiled, module, x)
    check(compiled, module, x)
    change(module)
    with Work() as work:
        check(compiled, module, x)
    assert work.misses == 1
    with Work() as work:
        check(compiled, module, x)
    assert work.misses == 0


@torch.no_grad()
def test_memory_that_is_used_again_is_no_identity() -> None:
    x = torch.randn(4, 96)
    module = Weights()
    compiled = torch.compile(module, backend="mlcc")  # mlcc.jit holds the parameters that it traced
    seen = set()
    for _ in range(20):
        del module.weight
        gc.collect()
        module.weight = torch.nn.Parameter(torch.randn(96, 96))
        seen.add(module.weight.data_ptr())
        check(compiled, module, x)
    assert len(seen) < 20  # else this tests nothing


@torch.no_grad()
def test_a_storage_that_takes_other_memory() -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = mlcc.jit(module)
    check(compiled, module, x)
    other = torch.randn(96, 96)
    module.weight.set_(other.untyped_storage(), 0, (96, 96), (96, 1))
    check(compiled, module, x)


def test_inference_tensors(compiler: Any) -> None:
    with torch.inference_mode():
        module, x = Weights(), torch.randn(4, 96)
        compiled = compiler(module)
        check(compiled, module, x)
        with Work() as work:
            check(compiled, module, x)
        assert (work.hits, work.misses) == (1, 0)
        module.weight.mul_(2)
        with Work() as work:
            check(compiled, module, x)
        assert work.misses == 1


def test_kept_in_and_out_of_inference_mode() -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = mlcc.jit(module)
    with torch.inference_mode():
        check(compiled, module, x)
    with torch.no_grad():
        check(compiled, module, x)
    assert packs()["packs"] == 1


def test_training_keeps_nothing_and_is_seen(compiler: Any) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = compiler(module)
    with Work() as work:
        compiled(x).sum().backward()
    assert work.misses == 0
    optimizer = torch.optim.SGD(
        module.parameters(), lr=0.001
    )  # at 0.1 the weights grow, and errors with them
    for _ in range(3):
        with torch.no_grad():
            check(compiled, module, x)
        optimizer.zero_grad()
        compiled(x).square().sum().backward()
        optimizer.step()
    with torch.no_grad():
        check(compiled, module, x)


def test_an_optimizer_step_of_our_own() -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = mlcc.jit(module)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    step = torch.compile(optimizer.step, backend="mlcc")
    for _ in range(3):
        with torch.no_grad():
            check(compiled, module, x)
        for parameter in module.parameters():
            parameter.grad = torch.randn_like(parameter)
        step()
    with torch.no_grad():
        check(compiled, module, x)
    assert packs()["packs"] == 1


@torch.no_grad()
def test_what_the_graph_writes_is_not_kept(compiler: Any) -> None:
    module = torch.nn.BatchNorm1d(16)
    twin = copy.deepcopy(module)
    compiled = compiler(module)
    for _ in range(3):
        x = torch.randn(8, 16)
        torch.testing.assert_close(compiled(x), twin(x))
        torch.testing.assert_close(module.running_var, twin.running_var)
    module.eval()
    twin.eval()
    x = torch.randn(8, 16)
    torch.testing.assert_close(compiled(x), twin(x))
    torch.testing.assert_close(compiled(x), twin(x))


class Written(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(300))
        self.count: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = x * torch.exp(self.count)
        self.count.add_(1)
        return result


@torch.no_grad()
def test_a_buffer_that_each_call_writes(compiler: Any) -> None:
    module = Written()
    twin = copy.deepcopy(module)
    compiled = compiler(module)
    x = torch.randn(300)
    for _ in range(4):
        torch.testing.assert_close(compiled(x), twin(x))
    assert packs()["packs"] == 0


class Tied(torch.nn.Module):
    def __init__(self, weight: torch.nn.Parameter) -> None:
        super().__init__()
        self.a, self.b = weight, weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x @ torch.exp(self.a)) @ torch.exp(self.b)


@torch.no_grad()
def test_tied_weights_are_kept_once(compiler: Any) -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64))
    one, two, x = Tied(weight), Tied(weight), torch.randn(4, 64)
    first, second = compiler(one), compiler(two)
    check(first, one, x)
    check(second, two, x)
    check(first, one, torch.randn(7, 64))
    assert packs()["packs"] == 1
    weight.add_(0.01)
    check(first, one, x)
    check(second, two, x)
    assert packs()["packs"] == 1


@torch.no_grad()
def test_two_instances_take_turns() -> None:
    one, two = Weights(), Weights()
    compiled = torch.compile(lambda module, x: module(x), backend="mlcc")
    x = torch.randn(4, 96)
    for module in (one, two):
        torch.testing.assert_close(compiled(module, x), module(x), rtol=1e-4, atol=1e-4)
    with Work() as work:
        for module in (one, two, one, two):
            torch.testing.assert_close(compiled(module, x), module(x), rtol=1e-4, atol=1e-4)
    assert (work.hits, work.misses) == (4, 0)


@torch.no_grad()
def test_a_deep_copy_has_its_own(compiler: Any) -> None:
    module, x = Weights(), torch.randn(4, 96)
    check(compiler(module), module, x)
    twin = copy.deepcopy(module)
    twin.weight.mul_(2)
    check(compiler(twin), twin, x)
    check(compiler(module), module, x)
    assert packs()["packs"] == 2


@torch.no_grad()
def test_what_was_kept_goes_with_its_weights(compiler: Any) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = compiler(module)
    check(compiled, module, x)
    assert packs()["packs"] == 1
    del compiled, module
    torch._dynamo.reset()
    gc.collect()
    assert packs()["packs"] == packs()["pack_bytes"] == 0


@torch.no_grad()
def test_a_parameter_that_is_replaced_frees_what_was_kept() -> None:
    module, x = Weights(), torch.randn(4, 96)
    # The jit entry of a replaced parameter holds it; torch.compile holds none.
    compiled = torch.compile(module, backend="mlcc")
    for _ in range(3):
        module.weight = torch.nn.Parameter(torch.randn(96, 96))
        check(compiled, module, x)
    gc.collect()
    assert packs()["packs"] == 1


@torch.no_grad()
def test_clearing(compiler: Any) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = compiler(module)
    for clear in (mlcc.clear_packs, mlcc.clear_cache):
        check(compiled, module, x)
        clear()
        assert packs()["packs"] == packs()["pack_bytes"] == 0
        with Work() as work:
            check(compiled, module, x)
        assert work.misses == 1


@torch.no_grad()
def test_clearing_cures_what_escaped() -> None:
    """The documented limit: a few elements of a large weight, written where no counter moves."""
    module, x = Weights(1024), torch.randn(4, 1024)
    compiled = mlcc.jit(module)
    check(compiled, module, x)
    module.weight.data[511, 3] = 1e4
    mlcc.clear_packs()
    check(compiled, module, x)


@torch.no_grad()
def test_verification_reads_all_bytes() -> None:
    module, x = Weights(256), torch.randn(4, 256)
    with mlcc.config.patch(verify="always"):
        compiled = mlcc.jit(module)
        check(compiled, module, x)
        module.weight.data[127, 3] = 100
        check(compiled, module, x)


@pytest.mark.parametrize("verify", ["first", "sample", "always", "nan"])
@torch.no_grad()
def test_under_verification(verify: str) -> None:
    module, x = Weights(), torch.randn(4, 96)
    with mlcc.config.patch(verify=verify):
        compiled = mlcc.jit(module)
        for _ in range(3):
            check(compiled, module, x)
    assert packs()["packs"] == 1


@torch.no_grad()
def test_switched_off() -> None:
    module, x = Weights(), torch.randn(4, 96)
    with mlcc.config.patch(pack_weights=False), Work() as work:
        compiled = mlcc.jit(module)
        check(compiled, module, x)
        check(compiled, module, x)
    assert (work.hits, work.misses) == (0, 0)
    other = torch.compile(module, backend="mlcc", options={"pack_weights": False})
    with Work() as work:
        check(other, module, x)
    assert (work.hits, work.misses) == (0, 0)


@torch.no_grad()
def test_the_budget_holds() -> None:
    modules = [Weights(512) for _ in range(4)]  # 1 MiB each
    x = torch.randn(4, 512)
    with mlcc.config.patch(pack_mb=5):
        compiled = [mlcc.jit(module) for module in modules]
        for one, module in zip(compiled, modules, strict=True):
            check(one, module, x)
            assert packs()["pack_bytes"] <= 5 << 20
        with Work() as work:
            check(compiled[3], modules[3], x)
        assert work.misses == 0
    with mlcc.config.patch(pack_mb=2):
        assert packs()["pack_bytes"] <= 2 << 20
        for one, module in zip(compiled, modules, strict=True):
            check(one, module, x)
            assert packs()["pack_bytes"] <= 2 << 20
    with mlcc.config.patch(pack_mb=0):
        assert packs()["packs"] == 0
        with Work() as work:
            for _ in range(2):
                check(compiled[0], modules[0], x)
        assert work.misses == 2


@torch.no_grad()
def test_outputs_are_not_what_is_kept(compiler: Any) -> None:
    class Returns(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(40, 30))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            exp = torch.exp(self.weight)
            norm = exp / exp.sum()
            return x @ exp, exp, norm.t(), x * norm.sum()

    module, x = Returns(), torch.randn(4, 40)
    compiled = compiler(module)
    for _ in range(2):
        results = compiled(x)
        for found, expected in zip(results, module(x), strict=True):
            torch.testing.assert_close(found, expected)
        for result in results:
            result.fill_(7)


def test_threads() -> None:
    module = Weights()
    compiled = mlcc.jit(module)
    inputs = [torch.randn(4, 96) for _ in range(8)]
    with torch.no_grad():
        expected = [module(x) for x in inputs]
        compiled(inputs[0])

    def work(number: int) -> None:
        with torch.no_grad():
            for round_ in range(30):
                if round_ % 10 == number % 10:
                    mlcc.clear_packs()
                torch.testing.assert_close(
                    compiled(inputs[number]), expected[number], rtol=1e-4, atol=1e-4
                )

    at_once(*(functools.partial(work, number) for number in range(8)))


@torch.no_grad()
def test_dynamic_shapes_share_what_is_kept(compiler: Any) -> None:
    module = Weights()
    compiled = compiler(module)
    for batch in (4, 5, 9, 16):
        check(compiled, module, torch.randn(batch, 96))
    assert packs()["packs"] == 1


@torch.no_grad()
def test_constants_of_the_trace(compiler: Any) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * torch.exp(torch.tensor([0.5, 1.0, 2.0, 4.0]))

    compiled, x = compiler(f), torch.randn(4, 4)
    check(compiled, f, x)
    with Work() as work:
        check(compiled, f, x)
    assert (work.hits, work.misses) == (1, 0)


@torch.no_grad()
def test_transposed_copies(compiler: Any) -> None:
    class Transposed(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(48, 64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x) @ torch.relu(self.weight).t().contiguous()

    module, x = Transposed(), torch.randn(4, 64)
    compiled = compiler(module)
    check(compiled, module, x)
    with Work() as work:
        check(compiled, module, x)
    assert (work.hits, work.misses) == (1, 0)


@torch.no_grad()
def test_weight_norm(compiler: Any) -> None:
    linear = torch.nn.Linear(64, 64)
    module = torch.nn.utils.parametrizations.weight_norm(linear)
    x = torch.randn(4, 64)
    compiled = compiler(module)
    check(compiled, module, x)
    with Work() as work:
        check(compiled, module, x)
    assert work.hits > 0
    assert work.misses == 0


@torch.no_grad()
def test_rotary_tables(compiler: Any) -> None:
    class Rotary(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("frequencies", 1 / 10000 ** (torch.arange(0, 32, 2) / 32))
            self.frequencies: torch.Tensor

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            angles = torch.outer(torch.arange(40, dtype=torch.float32), self.frequencies)
            angles = torch.cat([angles, angles], -1)
            half = torch.cat([-x[..., 16:], x[..., :16]], -1)
            return x * angles.cos() + half * angles.sin()

    module, x = Rotary(), torch.randn(2, 40, 32)
    compiled = compiler(module)
    check(compiled, module, x)
    with Work() as work:
        check(compiled, module, x)
    assert work.hits > 0
    assert work.misses == 0


@torch.no_grad()
def test_expanded_values_are_not_kept(compiler: Any) -> None:
    class Expanded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.row = torch.nn.Parameter(torch.randn(1, 50))
            self.column = torch.nn.Parameter(torch.randn(60, 1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.row + self.column) + self.row.expand(60, 50)

    module, x = Expanded(), torch.randn(60, 50)
    check(compiler(module), module, x)
    assert packs()["packs"] == 0


@torch.no_grad()
def test_calls_of_aten_are_kept(compiler: Any) -> None:
    class Product(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = torch.nn.Parameter(torch.randn(30, 40))
            self.b = torch.nn.Parameter(torch.randn(40, 50))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ (self.a @ self.b)

    module, x = Product(), torch.randn(4, 30)
    compiled = compiler(module)
    check(compiled, module, x)
    with Work() as work:
        check(compiled, module, x)
    assert (work.hits, work.misses) == (1, 0)


@torch.no_grad()
def test_dropout_and_random_draws_are_not_kept(compiler: Any) -> None:
    class Noisy(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(400))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.nn.functional.dropout(self.weight, 0.5)

    compiled, x = compiler(Noisy()), torch.ones(400)
    assert not torch.equal(compiled(x), compiled(x))


@torch.no_grad()
def test_the_log_says_why(mlcc_log: Log) -> None:
    module, x = Weights(), torch.randn(4, 96)
    compiled = mlcc.jit(module)
    with mlcc_log("cache") as lines:
        compiled(x)
        module.weight.add_(1)
        compiled(x)
        module.weight.data.add_(1)
        compiled(x)
        mlcc.clear_packs()
        compiled(x)
    reasons = [line.rsplit("(", 1)[1].rstrip(")") for line in lines if "computed" in line]
    assert reasons == ["first use", "version moved", "bytes differ", "dropped"]


@torch.no_grad()
def test_from_torchs_cache(fresh_cache: object) -> None:
    del fresh_cache
    module, x = Weights(), torch.randn(4, 96)
    counters = torch._dynamo.utils.counters["aot_autograd"]
    for time in range(2):  # the second time from AOTAutograd's cache
        torch._dynamo.reset()
        counters.clear()
        compiled = torch.compile(module, backend="mlcc")
        check(compiled, module, x)
        with Work() as work:
            check(compiled, module, x)
        assert (work.hits, work.misses) == (1, 0)
        assert counters["autograd_cache_hit"] == time


@torch.no_grad()
def test_large_values_lie_in_huge_pages() -> None:
    module, x = Weights(1024), torch.randn(4, 1024)
    before = mlcc.cache_info()["large_blocks"]
    compiled = mlcc.jit(module)
    check(compiled, module, x)
    assert mlcc.cache_info()["large_blocks"] - before >= 4 << 20


def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ torch.exp(w / 100)


def test_an_argument_that_is_no_parameter_is_never_static() -> None:
    with torch.no_grad(), Work() as work:
        mlcc.jit(scaled)(torch.randn(3, 8), torch.randn(8, 8))
    assert (work.hits, work.misses) == (0, 0)


def test_parameters_among_the_arguments(compiler: Any) -> None:
    x, first = torch.randn(3, 96), torch.nn.Parameter(torch.randn(96, 96))
    second = torch.nn.Parameter(torch.randn(96, 96))
    compiled = compiler(scaled)
    with torch.no_grad():
        for change in (lambda: None, lambda: first.data.mul_(0.5), lambda: first.add_(1)):
            change()
            torch.testing.assert_close(compiled(x, first), scaled(x, first))
            with Work() as work:
                torch.testing.assert_close(compiled(x, first), scaled(x, first))
            assert (work.hits, work.misses) == (1, 0)
        torch.testing.assert_close(compiled(x, second), scaled(x, second))
        assert packs()["packs"] == 2
        torch.testing.assert_close(compiled(x, first.detach()), scaled(x, first))
    del second
    gc.collect()
    assert packs()["packs"] == 1
    result = compiled(x, first)  # training
    result.sum().backward()
    assert first.grad is not None


@torch.no_grad()
def test_parameters_that_a_jitted_function_writes_have_symbolic_sizes(mlcc_log: Log) -> None:
    def step(p: torch.Tensor, gradient: torch.Tensor) -> None:
        p.add_(gradient, alpha=-0.1)

    jitted = mlcc.jit(step)
    with mlcc_log("recompiles") as lines:
        for size in (3, 4, 5):
            p, gradient = torch.nn.Parameter(torch.zeros(size)), torch.ones(size)
            jitted(p, gradient)
            torch.testing.assert_close(p.data, torch.full((size,), -0.1))
    assert not lines


@torch.no_grad()
def test_parameters_of_ever_new_shapes_have_symbolic_sizes(mlcc_log: Log) -> None:
    jitted = mlcc.jit(lambda x, w: x + w)
    with mlcc_log("recompiles") as lines:
        for size in range(2, 40):
            x, w = torch.randn(size), torch.nn.Parameter(torch.randn(size))
            torch.testing.assert_close(jitted(x, w), x + w)
    assert len(lines) == 16


def test_a_write_into_an_inference_tensor_never_escapes() -> None:
    """It has no version, and no sampled line of it need change."""
    with torch.inference_mode():
        module = torch.nn.Linear(512, 512)
        x = torch.randn(8, 512)
        compiled = torch.compile(module, backend="mlcc")
        compiled(x)
        compiled(x)
        module.weight[100, 101].fill_(50.0)
        torch.testing.assert_close(compiled(x), module(x))
