"""weights="steal": large weights are given up for their kept values, and are back as soon as anything asks for them."""

import copy
import functools
import gc
import io
import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlcc
from tests.python.threads import at_once

Log = Callable[..., AbstractContextManager[list[str]]]
SIZE = 256
BYTES = SIZE * SIZE * 4


@pytest.fixture(autouse=True)
def stealing() -> Iterator[None]:
    mlcc.clear_packs()
    with mlcc.config.patch(weights="steal"):
        yield
    torch._dynamo.reset()
    mlcc.clear_packs()


@pytest.fixture(params=["jit", "compile"])
def compiler(request: pytest.FixtureRequest) -> Callable[..., Any]:
    if request.param == "jit":
        return mlcc.jit
    return lambda f: torch.compile(f, backend="mlcc")


class Net(torch.nn.Module):
    """Two large weights."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.first = torch.nn.Linear(SIZE, SIZE, dtype=dtype)
        self.second = torch.nn.Linear(SIZE, SIZE, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.second(torch.relu(self.first(x)))
        return result


def stolen() -> int:
    count: int = mlcc.cache_info()["stolen"]
    return count


def restores() -> int:
    count: int = mlcc.cache_info()["restores"]
    return count


def check(compiled: Any, expected: Any, x: torch.Tensor) -> None:
    tolerance = 1e-4 if x.dtype == torch.float32 else 5e-2
    torch.testing.assert_close(compiled(x), expected(x), rtol=tolerance, atol=tolerance)


@pytest.fixture
def case(compiler: Any) -> tuple[Net, Any, Net, torch.Tensor]:
    """A network whose weights are stolen, compiled, an equal one that is not, and an input."""
    net, x = Net(), torch.randn(64, SIZE)
    twin = copy.deepcopy(net)
    compiled = compiler(net)
    with torch.no_grad():
        check(compiled, twin, x)
    assert stolen() == 2
    return net, compiled, twin, x


Case = tuple[Net, Any, Net, torch.Tensor]


# -- stealing


@torch.no_grad()
def test_values_stay_and_memory_does_not(case: Case) -> None:
    _, compiled, twin, x = case
    before = restores()
    for _ in range(3):
        check(compiled, twin, x)
    info = mlcc.cache_info()
    assert info["stolen_bytes"] == 2 * BYTES
    assert info["packs"] == info["pack_bytes"] == 0
    assert info["restores"] == before


@pytest.mark.parametrize("sizes", [(SIZE, SIZE), (333, 257), (320, 255)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.no_grad()
def test_every_bit_comes_back(dtype: torch.dtype, sizes: tuple[int, int], compiler: Any) -> None:
    module = torch.nn.Linear(*sizes, dtype=dtype)
    integers = torch.int32 if dtype == torch.float32 else torch.int16
    module.weight.view(integers).random_()  # NaN among them
    bits, x = module.weight.view(integers).clone(), torch.randn(64, sizes[0], dtype=dtype)
    compiled = compiler(module)
    compiled(x)
    assert stolen() == 1
    assert torch.equal(module.weight.view(integers), bits)
    assert stolen() == 0


@torch.no_grad()
def test_convolutions_and_channels_last(compiler: Any) -> None:
    for layout in (torch.contiguous_format, torch.channels_last):
        module = torch.nn.Conv2d(64, 64, 3, padding=1).to(memory_format=layout)
        twin = copy.deepcopy(module)
        compiled, x = compiler(module), torch.randn(1, 64, 14, 14).to(memory_format=layout)
        for _ in range(2):
            check(compiled, twin, x)
            assert torch.equal(module.weight, twin.weight)
            assert module.weight.stride() == twin.weight.stride()


@torch.no_grad()
def test_options_of_a_call() -> None:
    net, x = Net(), torch.randn(64, SIZE)
    with mlcc.config.patch(weights="keep"):
        compiled = torch.compile(net, backend="mlcc", options={"weights": "steal"})
        compiled(x)
        assert stolen() == 2
    with pytest.raises(
        mlcc.Error, match="weights: expected one of keep, steal, found 'steel'; nearest: steal"
    ):
        mlcc.config.resolve({"weights": "steel"})
    with pytest.raises(mlcc.Error, match=r"expected one of keep, steal, found 'both'"):
        mlcc.config.weights = "both"


@torch.no_grad()
def test_who_does_not_ask_keeps(compiler: Any) -> None:
    with mlcc.config.patch(weights="keep"):
        net, x = Net(), torch.randn(64, SIZE)
        compiled = compiler(net)
        compiled(x)
        assert stolen() == 0
        assert mlcc.cache_info()["packs"] == 2
        assert "TESTING_ONLY_GenericWrapper" not in str(torch._C._dispatch_keys(net.first.weight))


@torch.no_grad()
def test_no_recompilation(case: Case, mlcc_log: Log) -> None:
    net, compiled, twin, x = case
    with mlcc_log("recompiles") as lines:
        net(x)
        check(compiled, twin, x)
        mlcc.clear_packs()
        check(compiled, twin, x)
        net.first.weight.mul_(2)
        twin.first.weight.mul_(2)
        check(compiled, twin, x)
    assert not lines


@torch.no_grad()
def test_another_size_of_input_uses_what_is_stolen(case: Case) -> None:
    _, compiled, twin, _ = case
    before = restores()
    for batch in (65, 66, 80):
        check(compiled, twin, torch.randn(batch, SIZE))
    assert (stolen(), restores()) == (2, before)


# -- the first op that uses a weight restores it


USES: dict[str, Callable[[torch.nn.Parameter], Any]] = {
    "detach": lambda p: p.detach(),
    "view": lambda p: p[3:5, 7],
    "data": lambda p: p.data + 0,
    "deepcopy": copy.deepcopy,
    "to": lambda p: p.to(torch.float64),
    "numpy": lambda p: p.detach().numpy(),
    "numpy of data": lambda p: p.data.numpy(),
    "dlpack": lambda p: torch.from_dlpack(p.detach()),
    "data_ptr": lambda p: p.detach().data_ptr(),
    "repr": repr,
    "equal": lambda p: torch.equal(p, p),
    "list": lambda p: torch._foreach_add([p, p], 1),
    "optional list": lambda p: torch.zeros(SIZE, SIZE)[p.argsort()[0] * 0],
    "tolist": lambda p: p.tolist(),
    "vmap": lambda p: torch.func.vmap(lambda row: row.sum())(p),
    "share": lambda p: p.detach().share_memory_(),
    "functional": lambda p: torch.func.functional_call(
        torch.nn.Linear(SIZE, SIZE, bias=False), {"weight": p}, torch.ones(1, SIZE)
    ),
}


@pytest.mark.parametrize("name", USES)
@torch.no_grad()
def test_eager_use(name: str, case: Case) -> None:
    net, compiled, twin, x = case
    USES[name](net.first.weight)
    assert stolen() == 1
    assert torch.equal(net.first.weight, twin.first.weight)
    check(compiled, twin, x)


@torch.no_grad()
def test_eager_call(case: Case) -> None:
    net, compiled, twin, x = case
    assert torch.equal(net(x), twin(x))
    assert stolen() == 0
    check(compiled, twin, x)
    assert stolen() == 2


WITHOUT_AN_OP: dict[str, Callable[[torch.nn.Parameter], Any]] = {
    "data_ptr": lambda p: p.data_ptr(),
    "storage": lambda p: p.untyped_storage().data_ptr(),
    "storage bytes": lambda p: p.untyped_storage()[0],
    "storage clone": lambda p: p.untyped_storage().clone(),
    "storage view": lambda p: torch.empty(0).set_(p.untyped_storage()) + 1,
    "dlpack of data": lambda p: torch.utils.dlpack.to_dlpack(p.data),
    "pickle": pickle.dumps,
    "save": lambda p: torch.save(p, io.BytesIO()),
    "share": lambda p: p.share_memory_(),
}


@pytest.mark.parametrize("name", WITHOUT_AN_OP)
@torch.no_grad()
def test_what_is_no_op_raises(name: str, case: Case) -> None:
    net, compiled, twin, x = case
    with pytest.raises(RuntimeError, match=r"weights=\"steal\".* mlcc\.clear_packs\(\)"):
        WITHOUT_AN_OP[name](net.first.weight)
    check(compiled, twin, x)
    mlcc.clear_packs()
    WITHOUT_AN_OP[name](net.first.weight)


@torch.no_grad()
def test_a_stolen_weight_is_not_shared(case: Case) -> None:
    """torch's own function would end the process."""
    net, compiled, twin, x = case
    weight = net.first.weight
    assert not weight.is_shared()
    assert not weight.untyped_storage().is_shared()
    check(compiled, twin, x)


@torch.no_grad()
def test_who_has_an_address_keeps_his_memory() -> None:
    """Of a weight that was to be stolen."""
    uses = {**USES, **WITHOUT_AN_OP}
    for name in ("data_ptr", "numpy of data", "dlpack of data", "storage"):
        net, x = Net(), torch.randn(64, SIZE)
        compiled = mlcc.jit(net)
        compiled(x)
        mlcc.clear_packs()
        address = uses[name](net.first.weight)
        for _ in range(3):
            compiled(x)
        assert stolen() == 1, name
        assert net.first.weight.data_ptr() != 0
        del address
        mlcc.clear_packs()


@pytest.mark.parametrize("name", ["numpy", "from_dlpack", "to_dlpack"])
@torch.no_grad()
def test_who_had_it_before_keeps_it(name: str, compiler: Any) -> None:
    net, x = Net().requires_grad_(False), torch.randn(64, SIZE)
    weight = net.first.weight
    expected = weight.clone()
    other: Any
    if name == "numpy":
        other = weight.numpy()
    elif name == "from_dlpack":
        other = torch.from_dlpack(weight)
    else:
        other = torch.utils.dlpack.to_dlpack(weight)
    compiled = compiler(net)
    for _ in range(70):
        compiled(x)
    assert stolen() == 1
    if name == "to_dlpack":
        other = torch.from_dlpack(other)
    assert torch.equal(torch.as_tensor(other), expected)


# -- the rest of a weight's life


@torch.no_grad()
def test_state_dict_and_back(case: Case) -> None:
    net, compiled, twin, x = case
    state = net.state_dict()
    assert stolen() == 0
    for name, value in twin.state_dict().items():
        assert torch.equal(state[name], value)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    del state
    gc.collect()
    check(compiled, twin, x)
    for assign in (False, True):
        buffer.seek(0)
        state = torch.load(buffer)
        state = {name: value * 2 for name, value in state.items()}
        net.load_state_dict(state, assign=assign)
        twin.load_state_dict(copy.deepcopy(state))
        del state
        check(compiled, twin, x)
        check(net, twin, x)
        check(compiled, twin, x)
        assert stolen() >= 2  # mlcc.jit holds those that were replaced


@pytest.mark.parametrize("write", ["copy", "data", "op", "swap", "element"])
@torch.no_grad()
def test_written(write: str, case: Case) -> None:
    net, compiled, twin, x = case
    value = torch.randn(SIZE, SIZE)
    for module in (net, twin):
        weight = module.first.weight
        if write == "copy":
            weight.copy_(value)
        elif write == "data":
            weight.data.copy_(value)
        elif write == "op":
            weight.mul_(3)
        elif write == "swap":
            weight.data = value.clone()
        else:
            weight[200, 3] = 100
    for _ in range(2):
        check(compiled, twin, x)
    assert stolen() >= 1
    assert torch.equal(net.first.weight, twin.first.weight)


def test_training_after_stealing(case: Case, compiler: Any) -> None:
    net, compiled, twin, x = case
    del compiled
    trained = compiler(net)
    for module, forward in ((net, trained), (twin, twin)):
        optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
        module.train()
        for _ in range(3):
            optimizer.zero_grad()
            forward(x).square().mean().backward()
            optimizer.step()
        with torch.no_grad():
            check(forward, twin if module is twin else module, x)
    assert stolen() == 0  # by then the eager call took them back
    for one, other in zip(net.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_a_backward_pass_across_stealing(compiler: Any) -> None:
    """What eager saved is the weight itself."""
    net, x = Net(), torch.randn(64, SIZE, requires_grad=True)
    twin = copy.deepcopy(net)
    compiled = compiler(net)
    loss, expected = net(x).sum(), twin(x).sum()
    with torch.no_grad():
        compiled(x)
    (gradient,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, x)[0])


@torch.no_grad()
def test_modules_convert(case: Case, compiler: Any) -> None:
    net, compiled, twin, x = case
    net.to(torch.bfloat16)
    twin.to(torch.bfloat16)
    check(compiled, twin, x.bfloat16())
    check(compiler(net), twin, x.bfloat16())


@torch.no_grad()
def test_memory_goes_with_the_module(compiler: Any) -> None:
    net = Net()
    compiled = compiler(net)
    compiled(torch.randn(64, SIZE))
    assert stolen() == 2
    del net, compiled
    torch._dynamo.reset()
    gc.collect()
    info = mlcc.cache_info()
    assert info["stolen"] == info["stolen_bytes"] == info["packs"] == 0


@torch.no_grad()
def test_clearing_and_reset(case: Case) -> None:
    net, compiled, twin, x = case
    for clear in (mlcc.clear_packs, mlcc.clear_cache):
        clear()
        assert stolen() == 0
        assert net.first.weight.data.is_contiguous()
        check(compiled, twin, x)
        assert stolen() == 2
    torch._dynamo.reset()
    check(compiled, twin, x)
    check(net, twin, x)


# -- what is not stolen


class Tied(torch.nn.Module):
    """An embedding whose weight is the last layer's."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(SIZE, SIZE)
        self.head = torch.nn.Linear(SIZE, SIZE, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.head(torch.relu(self.embed(tokens)))
        return result


@torch.no_grad()
def test_tied_weights_stay(compiler: Any) -> None:
    module, tokens = Tied(), torch.randint(SIZE, (64,))
    compiled = compiler(module)
    for _ in range(2):
        torch.testing.assert_close(compiled(tokens), module(tokens), rtol=1e-4, atol=1e-4)
        assert stolen() == 0


@torch.no_grad()
def test_views_of_one_storage_stay(compiler: Any) -> None:
    net, twin, x = Net(), Net(), torch.randn(64, SIZE)
    flat = torch.randn(2, SIZE, SIZE) / 16
    for module in (net, twin):
        module.first.weight.data, module.second.weight.data = flat[0], flat[1]
    twin.load_state_dict(net.state_dict())
    compiled = compiler(net)
    for _ in range(2):
        check(compiled, twin, x)
        assert stolen() == 0
        flat.mul_(2)


@torch.no_grad()
def test_memory_of_others_stays(compiler: Any) -> None:
    array = np.random.default_rng(0).standard_normal((SIZE, SIZE), np.float32)
    net, x = Net(), torch.randn(64, SIZE)
    net.first.weight.data = torch.from_numpy(array)
    compiled = compiler(net)
    compiled(x)
    assert stolen() == 1
    assert array.sum() == net.first.weight.detach().numpy().sum()


@torch.no_grad()
def test_mapped_files_stay(tmp_path: Path, compiler: Any) -> None:
    net, x = Net(), torch.randn(64, SIZE)
    torch.save(net.state_dict(), tmp_path / "weights.pt")
    net.load_state_dict(torch.load(tmp_path / "weights.pt", mmap=True), assign=True)
    compiled = compiler(net)
    check(compiled, net, x)
    check(compiled, net, x)
    assert stolen() == 0


@torch.no_grad()
def test_small_weights_and_buffers_stay(compiler: Any) -> None:
    compiled = compiler(torch.nn.Linear(64, 64))
    compiled(torch.randn(64, 64))
    assert stolen() == 0


@torch.no_grad()
def test_what_is_computed_is_not_stolen_for(compiler: Any) -> None:
    """The weight cannot be had back from its exponential."""

    class Exp(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(SIZE, SIZE))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x @ torch.exp(self.weight)

    module, x = Exp(), torch.randn(64, SIZE)
    check(compiler(module), module, x)
    assert stolen() == 0


@torch.no_grad()
def test_two_graphs_that_read_it_in_other_ways(compiler: Any, mlcc_log: Log) -> None:
    weight = torch.nn.Parameter(torch.randn(SIZE, SIZE))
    twin, x = weight.detach().clone(), torch.randn(64, SIZE)
    straight = compiler(lambda x, w: torch.nn.functional.linear(x, w))
    transposed = compiler(lambda x, w: x @ w)
    with mlcc_log("cache") as lines:
        for _ in range(12):
            torch.testing.assert_close(straight(x, weight), x @ twin.t(), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(transposed(x, weight), x @ twin, rtol=1e-4, atol=1e-4)
    assert stolen() == 0  # taken back too often
    assert sum("stolen no more" in line for line in lines) == 1
    assert torch.equal(weight, twin)


@torch.no_grad()
def test_parameters_among_the_arguments(compiler: Any, mlcc_log: Log) -> None:
    function = compiler(torch.nn.functional.linear)
    x = torch.randn(64, SIZE)
    with mlcc_log("recompiles") as lines:
        for number in range(3):
            weight = torch.nn.Parameter(torch.randn(SIZE, SIZE))
            expected = x @ weight.t()
            for _ in range(2):
                torch.testing.assert_close(function(x, weight), expected, rtol=1e-4, atol=1e-4)
            assert stolen() == 1, number
            del weight
    # Dynamo's guards tell a parameter that is not watched from one that is.
    assert len(lines) <= 2


@torch.no_grad()
def test_what_was_used_for_long_may_be_taken_back_again(case: Case) -> None:
    net, compiled, twin, x = case
    for _ in range(6):
        for _ in range(64):
            compiled(x)
        net(x)
        check(compiled, twin, x)
        assert stolen() == 2


@torch.no_grad()
def test_a_weight_that_others_use_is_stolen_later() -> None:
    net, x = Net(), torch.randn(64, SIZE)
    state = net.state_dict()
    compiled = mlcc.jit(net)
    compiled(x)
    assert stolen() == 0
    del state
    for _ in range(64):
        compiled(x)
    assert stolen() == 2
    assert mlcc.cache_info()["packs"] == 0


# -- beside others


@pytest.mark.parametrize("verify", ["first", "always"])
@torch.no_grad()
def test_under_verification(verify: str, compiler: Any) -> None:
    with mlcc.config.patch(verify=verify):
        net, x = Net(), torch.randn(8, SIZE)
        twin = copy.deepcopy(net)
        compiled = compiler(net)
        for _ in range(3):
            check(compiled, twin, x)
            assert stolen() == 2
        assert torch.equal(net.first.weight, twin.first.weight)


def test_inference_mode(compiler: Any) -> None:
    with torch.inference_mode():
        net = Net()
        twin, x = copy.deepcopy(net), torch.randn(64, SIZE)
        compiled = compiler(net)
        check(compiled, twin, x)
        assert stolen() == 2
        net.first.weight[3, 3] = 50
        twin.first.weight[3, 3] = 50
        check(compiled, twin, x)
        check(net, twin, x)


@torch.no_grad()
def test_frozen_weights_with_gradients_enabled(compiler: Any) -> None:
    net = Net().requires_grad_(False)
    twin, x = copy.deepcopy(net), torch.randn(64, SIZE)
    compiled = compiler(net)
    with torch.enable_grad():
        check(compiled, twin, x)
    assert stolen() == 2


def test_threads() -> None:
    net = Net()
    twin = copy.deepcopy(net)
    compiled = mlcc.jit(net)
    inputs = [torch.randn(64, SIZE) for _ in range(8)]
    expected = [twin(x).detach() for x in inputs]
    with torch.no_grad():
        compiled(inputs[0])

    def work(number: int) -> None:
        with torch.no_grad(), mlcc.config.patch(weights="steal"):
            for round_ in range(40):
                run = net if (round_ + number) % 5 == 0 else compiled
                if round_ % 10 == number:
                    mlcc.clear_packs()
                torch.testing.assert_close(
                    run(inputs[number]), expected[number], rtol=1e-4, atol=1e-4
                )

    at_once(*(functools.partial(work, number) for number in range(8)))
    assert torch.equal(net.first.weight, twin.first.weight)


@torch.no_grad()
def test_fork(case: Case) -> None:
    net, compiled, twin, x = case
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check(compiled, twin, x)
            check(net, twin, x)
            check(compiled, twin, x)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    check(compiled, twin, x)


@torch.no_grad()
def test_other_backends_see_the_weight(case: Case) -> None:
    net, compiled, twin, x = case
    torch._dynamo.reset()
    check(torch.compile(net, backend="aot_eager"), twin, x)
    check(compiled, twin, x)


@torch.no_grad()
def test_from_torchs_cache(fresh_cache: object) -> None:
    del fresh_cache
    net, x = Net(), torch.randn(64, SIZE)
    twin = copy.deepcopy(net)
    for _ in range(2):
        torch._dynamo.reset()
        mlcc.clear_packs()
        check(torch.compile(net, backend="mlcc"), twin, x)
        assert stolen() == 2
