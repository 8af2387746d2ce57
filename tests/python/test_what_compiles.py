"""What must compile after a change and what must not: kernels are counted, and graphs that Dynamo traces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters

import mlcc

WIDTH, LAYERS = 16, 24

pytestmark = pytest.mark.usefixtures("nothing_kept", "fresh_cache")


class Work:
    """What is compiled and traced in a `with` block."""

    def __enter__(self) -> Work:
        self._before = self._now()
        return self

    def __exit__(self, *_: object) -> None:
        compiled, graphs = self._now()
        self.compiled, self.graphs = compiled - self._before[0], graphs - self._before[1]

    @staticmethod
    def _now() -> tuple[int, int]:
        return int(mlcc.cache_info()["misses"]), int(counters["stats"]["unique_graphs"])


class Layer(torch.nn.Module):
    """A gated layer, whose activation is one of two."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor] = torch.sigmoid) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.function(self.linear(self.norm(x)))


class Model(torch.nn.Module):
    """Layers one after the other."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def forgotten() -> Iterator[None]:
    """Kernels of other tests are not in memory."""
    torch._dynamo.reset()
    mlcc.clear_cache()
    yield
    torch._dynamo.reset()


def by_jit(model: torch.nn.Module) -> Any:
    return mlcc.jit(model)


def by_compile(model: torch.nn.Module) -> Any:
    return torch.compile(model, backend="mlcc")


BOTH = pytest.mark.parametrize("compiled_by", [by_jit, by_compile])


def check(run: Callable[..., Any], model: Callable[..., Any], x: torch.Tensor) -> None:
    torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)


@BOTH
@torch.no_grad()
def test_one_of_many_layers_changes(compiled_by: Any, forgotten: None) -> None:
    """Its kernels compile, and those of its neighbours where they reach into it; the number of layers is no matter."""
    del forgotten
    model, x = Model(), torch.randn(4, WIDTH)
    with Work() as first:
        check(compiled_by(model), model, x)
    assert 0 < first.compiled < LAYERS / 2  # equal layers have equal kernels
    torch._dynamo.reset()
    model.layers[11] = Layer(torch.tanh)
    with Work() as second:
        check(compiled_by(model), model, x)
    assert 0 < second.compiled <= 2
    torch._dynamo.reset()
    model.layers[11], model.layers[17] = Layer(), Layer(torch.tanh)
    with Work() as moved:
        check(compiled_by(model), model, x)
    assert moved.compiled == 0


@BOTH
@torch.no_grad()
def test_another_number_of_layers(compiled_by: Any, forgotten: None) -> None:
    del forgotten
    x = torch.randn(4, WIDTH)
    for layers, compiles in ((4, True), (LAYERS, False), (2, False)):
        torch._dynamo.reset()
        model = Model(layers)
        with Work() as work:
            check(compiled_by(model), model, x)
        assert bool(work.compiled) == compiles


@pytest.fixture
def warm() -> tuple[Model, torch.Tensor]:
    """A model of a few layers, and an input."""
    torch._dynamo.reset()
    return Model(3).requires_grad_(False), torch.randn(4, WIDTH)


@BOTH
def test_a_checkpoint_is_loaded(
    compiled_by: Any, warm: tuple[Model, torch.Tensor], tmp_path: Path
) -> None:
    model, x = warm
    run = compiled_by(model)
    check(run, model, x)
    torch.save(Model(3).state_dict(), tmp_path / "checkpoint")
    with Work() as work:
        model.load_state_dict(torch.load(tmp_path / "checkpoint"))
        check(run, model, x)
    assert (work.compiled, work.graphs) == (0, 0)


@BOTH
def test_a_checkpoint_takes_the_place_of_the_parameters(
    compiled_by: Any, warm: tuple[Model, torch.Tensor]
) -> None:
    """New tensors under the old names: no kernel compiles, and Dynamo traces again at most once."""
    model, x = warm
    run = compiled_by(model)
    check(run, model, x)
    with Work() as work:
        model.load_state_dict(Model(3).state_dict(), assign=True)
        model.requires_grad_(False)
        check(run, model, x)
    assert work.compiled == 0
    assert work.graphs <= 1


def merge(weight: torch.Tensor) -> torch.Tensor:
    """What LoRA adds."""
    return weight + torch.randn(WIDTH, 2) @ torch.randn(2, WIDTH)


@BOTH
def test_lora_is_merged_in_place(compiled_by: Any, warm: tuple[Model, torch.Tensor]) -> None:
    model, x = warm
    run = compiled_by(model)
    check(run, model, x)
    for turn in range(2):
        with Work() as work:
            for layer in model.layers:
                new = merge(layer.linear.weight)
                if turn == 0:
                    layer.linear.weight.copy_(new)
                else:
                    layer.linear.weight.data = new
            check(run, model, x)
        assert (work.compiled, work.graphs) == (0, 0)


@BOTH
def test_lora_is_merged_into_new_parameters(
    compiled_by: Any, warm: tuple[Model, torch.Tensor]
) -> None:
    model, x = warm
    run = compiled_by(model)
    check(run, model, x)
    with Work() as work:
        for layer in model.layers:
            layer.linear.weight = torch.nn.Parameter(
                merge(layer.linear.weight), requires_grad=False
            )
        check(run, model, x)
    assert work.compiled == 0
    assert work.graphs <= 1


@BOTH
def test_functional_call_with_other_weights(
    compiled_by: Any, warm: tuple[Model, torch.Tensor]
) -> None:
    """Inside the compiled function the weights are arguments: nothing compiles for others."""
    model, x = warm

    def call(weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, weights, (x,))

    function = torch.compile(call, backend="mlcc")

    @mlcc.jit
    def jitted(module: Model, weights: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(module, weights, (x,))

    def run(weights: dict[str, torch.Tensor], x: torch.Tensor) -> Any:
        return jitted(model, weights, x) if compiled_by is by_jit else function(weights, x)

    first, second = (dict(Model(3).requires_grad_(False).named_parameters()) for _ in range(2))
    torch.testing.assert_close(run(first, x), call(first, x), rtol=1e-4, atol=1e-4)
    with Work() as work:
        torch.testing.assert_close(run(second, x), call(second, x), rtol=1e-4, atol=1e-4)
    assert (work.compiled, work.graphs) == (0, 0)


@BOTH
def test_functional_call_of_a_compiled_module(
    compiled_by: Any, warm: tuple[Model, torch.Tensor]
) -> None:
    model, x = warm
    run = compiled_by(model)
    check(run, model, x)
    prefix = "_orig_mod." if compiled_by is by_compile else ""
    for turn in range(2):
        other = Model(3).requires_grad_(False)
        weights = {prefix + name: value for name, value in other.named_parameters()}
        with Work() as work:
            check(lambda x: torch.func.functional_call(run, weights, (x,)), other, x)
        assert work.compiled == 0
        assert work.graphs <= (turn == 0)


@BOTH
def test_training_after_a_checkpoint(compiled_by: Any, forgotten: None, tmp_path: Path) -> None:
    """The passes of the first step serve all later ones, whatever becomes of the weights."""
    del forgotten
    model, x = Model(2), torch.randn(4, WIDTH)
    run = compiled_by(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        optimizer.zero_grad()
        run(x).square().mean().backward()
        optimizer.step()

    step()
    torch.save(Model(2).state_dict(), tmp_path / "checkpoint")
    with Work() as work:
        step()
        model.load_state_dict(torch.load(tmp_path / "checkpoint"))
        step()
    assert (work.compiled, work.graphs) == (0, 0)
