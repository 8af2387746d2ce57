"""Packages whose weights are exchanged, by the names of a state_dict."""

from __future__ import annotations

import copy
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

import mlcc
import mlcc.runtime
from mlcc.runtime import PackageError
from tests.python.accuracy import check_all, to_double

pytestmark = pytest.mark.usefixtures("nothing_kept")


class Tied(nn.Module):
    """Weights that are packed, that are not, that two layers share, and that no result depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()
        )
        self.linear = nn.Linear(16, 64)
        self.embedding = nn.Embedding(8, 64)
        self.head = nn.Linear(64, 8, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((8,), 2.0))
        self.register_buffer("fixed", torch.full((8,), 0.5), persistent=False)
        self.unread = nn.Parameter(torch.zeros(3))

    def forward(self, image: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.linear(self.body(image).mean((2, 3)))) + self.embedding(ids)
        return self.head(hidden) * self.scale + self.fixed


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 20, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.lstm(x)[0]


CASES: dict[str, tuple[type[nn.Module], tuple[torch.Tensor, ...]]] = {
    "tied": (Tied, (torch.randn(4, 3, 20, 20), torch.randint(0, 8, (4,)))),
    "attention": (Attention, (torch.randn(2, 6, 32),)),
    "recurrent": (Recurrent, (torch.randn(2, 5, 12),)),
}


def trained(kind: type[nn.Module]) -> nn.Module:
    """Another one, whose norms have seen data too."""
    model = kind().eval()
    for name, value in model.named_buffers():
        if name.endswith("running_mean"):
            value.normal_()
        if name.endswith("running_var"):
            value.uniform_(0.5, 2.0)
    return model


def exported(model: nn.Module, args: tuple[torch.Tensor, ...], folder: Path) -> Path:
    path = folder / "model.mlcc"
    mlcc.export(model, args, path, refit=True)
    return path


def check_as(model: nn.Module, found: Any, args: tuple[torch.Tensor, ...]) -> None:
    double = copy.deepcopy(model).double()
    check_all(found, model(*args), double(*to_double(args)))


@pytest.mark.parametrize("name", CASES)
def test_all_weights(name: str, tmp_path: Path) -> None:
    kind, args = CASES[name]
    first, second = trained(kind), trained(kind)
    package = mlcc.load(exported(first, args, tmp_path))
    before = package(*args)
    package.refit(second.state_dict())
    with torch.no_grad():
        check_as(second, package(*args), args)
        package.refit(first.state_dict())
        assert torch.equal(package(*args), before)


def test_some_weights(tmp_path: Path) -> None:
    kind, args = CASES["tied"]
    model = trained(kind)
    package = mlcc.load(exported(model, args, tmp_path))
    before = package(*args)
    package.refit({"scale": torch.full((8,), 4.0)})
    assert torch.allclose(package(*args) - 0.5, 2 * (before - 0.5), rtol=1e-5, atol=1e-5)
    package.refit({"scale": torch.full((8,), 2.0)})
    for names in (["head.weight"], ["embedding.weight"], ["head.weight", "embedding.weight"]):
        value = torch.randn(8, 64)
        # Twice the same, as a file has it that does not know of two names for one tensor.
        package.refit({name: value.clone() for name in names})
        changed = copy.deepcopy(model)
        changed.head.weight.data.copy_(value)
        with torch.no_grad():
            check_as(changed, package(*args), args)


def test_weights_in_other_layouts(tmp_path: Path) -> None:
    kind, args = CASES["tied"]
    first, second = trained(kind), trained(kind)
    package = mlcc.load(exported(first, args, tmp_path))
    state = {
        name: value.detach().t().contiguous().t() if value.dim() == 2 else value
        for name, value in second.state_dict().items()
    }
    package.refit(state)
    with torch.no_grad():
        check_as(second, package(*args), args)


def test_without_torch(tmp_path: Path) -> None:
    kind, args = CASES["attention"]
    first, second = trained(kind), trained(kind)
    path = exported(first, args, tmp_path)
    package, tensors = mlcc.runtime.load(path), mlcc.load(path)
    package.refit({name: value.numpy() for name, value in second.state_dict().items()})
    tensors.refit(second.state_dict())
    found = package(*(value.numpy() for value in args))
    assert numpy.array_equal(found, tensors(*args).numpy())


def test_what_can_be_exchanged(tmp_path: Path) -> None:
    kind, args = CASES["tied"]
    model = trained(kind)
    package = mlcc.load(exported(model, args, tmp_path))
    state = model.state_dict()
    unread = {"body.1.num_batches_tracked", "unread"}
    assert {info.name for info in package.weights} == set(state) - unread
    assert all(info.sizes == tuple(state[info.name].shape) for info in package.weights)


def test_wrong_weights_change_nothing(tmp_path: Path) -> None:
    kind, args = CASES["tied"]
    package = mlcc.load(exported(trained(kind), args, tmp_path))
    before = package(*args)
    good = {"scale": torch.ones(8)}
    wrong: list[tuple[dict[str, torch.Tensor], type[Exception], str]] = [
        ({"nobody": torch.ones(8)}, PackageError, "none of that name"),
        ({"linear.weight": torch.ones(16, 64)}, PackageError, r"found sizes \[16, 64\]"),
        ({"linear.weight": torch.ones(64)}, PackageError, "found 1 dimensions"),
        ({"linear.bias": torch.ones(64, dtype=torch.float64)}, TypeError, "found dtype"),
        (
            {"head.weight": torch.ones(8, 64), "embedding.weight": torch.zeros(8, 64)},
            PackageError,
            "two names",
        ),
    ]
    for name in (1, "scale\0"):
        wrong.append(({name: torch.ones(8)}, TypeError, "expected the name"))  # type: ignore[dict-item]
    for weights, kind_of_error, told in wrong:
        with pytest.raises(kind_of_error, match=told):
            package.refit({**good, **weights})
        assert torch.equal(package(*args), before)


class Expanded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.randn(1, 4).expand(3, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


def test_expanded_weights(tmp_path: Path) -> None:
    args = (torch.randn(3, 4),)
    model = Expanded().eval()
    package = mlcc.load(exported(model, args, tmp_path))
    before = package(*args)
    with pytest.raises(PackageError, match="weight scale: the model has one place"):
        package.refit({"linear.weight": torch.ones(4, 4), "scale": torch.randn(3, 4)})
    assert torch.equal(package(*args), before)
    for scale in (torch.randn(1, 4).expand(3, 4), torch.randn(4).repeat(3, 1)):
        package.refit({"scale": scale})
        model.scale = scale
        with torch.no_grad():
            check_as(model, package(*args), args)


def test_a_package_without_that(tmp_path: Path) -> None:
    kind, args = CASES["attention"]
    mlcc.export(trained(kind), args, tmp_path / "model.mlcc")
    package = mlcc.load(tmp_path / "model.mlcc")
    with pytest.raises(PackageError, match="exported without"):
        package.refit({})


def test_calls_see_all_of_the_weights_or_none(tmp_path: Path) -> None:
    kind, args = CASES["tied"]
    models = [trained(kind), trained(kind)]
    package = mlcc.load(exported(models[0], args, tmp_path))
    expected = []
    for model in models:
        package.refit(model.state_dict())
        expected.append(package(*args))
    torn: list[torch.Tensor] = []
    ended = threading.Event()

    def call() -> None:
        for _ in range(100):
            found = package(*args)
            if not any(torch.equal(found, one) for one in expected):
                torn.append(found)

    def exchange() -> None:
        while not ended.is_set():
            for model in models:
                package.refit(model.state_dict())

    exchanging = threading.Thread(target=exchange)
    callers = [threading.Thread(target=call) for _ in range(8)]
    for thread in (exchanging, *callers):
        thread.start()
    for thread in callers:
        thread.join()
    ended.set()
    exchanging.join()
    assert not torn
