"""mlcc.jit of a module: a module with the original's parameters, attributes, hooks and methods."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


class Net(torch.nn.Module):
    """With state of all kinds, names like those of jit's own, and a method that calls the module."""

    subclasses: int = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self._name = self._function = self._entries = self._run = "the module's"

    def __init_subclass__(cls) -> None:
        Net.subclasses += 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Other numbers where it trains."""
        result: torch.Tensor = self.linear(x) * self.scale + self.shift
        return result * 2 if self.training else result

    def twice(self, x: torch.Tensor) -> torch.Tensor:
        """Calls that the trace is for."""
        result: torch.Tensor = self(self(x))
        return result


class Outer(torch.nn.Module):
    def __init__(self, inner: torch.nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.last = torch.nn.Linear(3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The inner module, and more."""
        result: torch.Tensor = self.last(self.inner(x))
        return result


def traces(module: Any) -> int:
    count: int = module._mlcc_jit._traces
    return count


def check(jitted: Any, module: Any, *args: Any) -> None:
    torch.testing.assert_close(jitted(*args), module(*args))


def test_it_is_a_module_of_the_originals_class() -> None:
    net = Net()
    jitted = mlcc.jit(net)
    assert isinstance(jitted, torch.nn.Module) and isinstance(jitted, Net)
    assert Net.subclasses == 0
    assert list(jitted.state_dict()) == list(net.state_dict())
    assert [name for name, _ in jitted.named_modules()] == ["", "linear"]
    assert all(a is b for a, b in zip(jitted.parameters(), net.parameters(), strict=True))
    assert jitted.scale == 2.0 and jitted._name == "the module's"
    jitted.scale = 3.0
    jitted.extra = torch.nn.Parameter(torch.ones(1))
    assert net.scale == 3.0 and net.extra is jitted.extra
    check(jitted, net, X)
    assert repr(jitted).startswith("JittedNet(")
    with pytest.raises(AttributeError, match="absent"):
        _ = jitted.absent


def test_methods_call_the_trace() -> None:
    net = Net()
    jitted = mlcc.jit(net)
    with torch.no_grad():
        torch.testing.assert_close(jitted.twice(X), net.twice(X))
    assert traces(jitted) == 1


def test_modes_and_conversions() -> None:
    net = Net()
    jitted = mlcc.jit(net)
    check(jitted, net, X)
    assert jitted.eval() is jitted and not net.training and not net.linear.training
    check(jitted, net, X)
    net.train()
    assert jitted.training
    jitted.to(torch.float64)
    assert net.linear.weight.dtype == torch.float64
    check(jitted, net, X.double())
    jitted.load_state_dict({name: torch.ones_like(v) for name, v in net.state_dict().items()})
    check(jitted, net, X.double())
    jitted.zero_grad()
    jitted(X.double()).sum().backward()
    assert net.linear.weight.grad is not None


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda jitted: pickle.loads(pickle.dumps(jitted))]
)
def test_copies(copied: Callable[[Any], Any]) -> None:
    net = Net()
    outer = torch.nn.Sequential(mlcc.jit(net), net)
    check(outer[0], net, X)
    other = copied(outer)
    assert type(other[0]).__name__ == "JittedNet" and other[0].linear is other[1].linear
    assert other[0].linear.weight is not net.linear.weight
    check(other[0], net, X)
    assert traces(other[0]) == 1
    other[0].scale = 5.0
    check(other[0], other[1], X)
    assert net.scale == 2.0


def test_a_shallow_copy_has_attributes_of_its_own() -> None:
    net = Net()
    other: Any = copy.copy(mlcc.jit(net))
    other.scale = 5.0
    assert net.scale == 2.0 and other.linear is net.linear
    with pytest.raises(AssertionError):
        check(other, net, X)


def test_a_submodule_of_others() -> None:
    outer = Outer(mlcc.jit(Net()))
    assert sorted(dict(outer.named_parameters())) == [
        *("inner.linear.bias", "inner.linear.weight", "last.bias", "last.weight")
    ]
    reference = Outer(Net())
    reference.load_state_dict(outer.state_dict())
    check(outer, reference, X)
    assert traces(outer.inner) == 1
    outer.eval()
    assert not outer.inner.training
    check(outer, reference.eval(), X)


def test_inside_of_another_jit_and_of_dynamo() -> None:
    outer = Outer(mlcc.jit(Net()))
    reference = Outer(Net())
    reference.load_state_dict(outer.state_dict())
    graphs = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        del inputs
        graphs.append(graph)
        return graph

    jitted = mlcc.jit(outer)
    for compiled in (jitted, torch.compile(outer, backend=backend, fullgraph=True)):
        for _ in range(2):
            check(compiled, reference, X)
        with torch.no_grad():
            outer.inner.linear.weight += 1
            reference.inner.linear.weight += 1
        check(compiled, reference, X)
    assert traces(jitted) == 1 and traces(outer.inner) == 0 and len(graphs) == 1
    outer.inner.scale = reference.inner.scale = 7.0
    check(jitted, reference, X)
    assert traces(jitted) == 2


def test_torch_compile_and_disable_take_the_original() -> None:
    jitted = mlcc.jit(Net())
    for wrap in (torch.compiler.disable, lambda one: torch.compile(one, backend="eager")):
        torch.testing.assert_close(wrap(jitted)(X), jitted._mlcc_jit._function(X))
    assert traces(jitted) == 0
    assert mlcc.jit(jitted)._mlcc_jit._function is jitted._mlcc_jit._function


def test_hooks() -> None:
    """They are traced, and see the original module."""
    net = Net()
    jitted = mlcc.jit(net)
    check(jitted, net, X)
    handles = [
        jitted.register_forward_pre_hook(lambda module, args: (args[0] * 2,)),
        jitted.register_forward_hook(lambda module, args, result: result + (type(module) is Net)),
        jitted.register_state_dict_post_hook(lambda *args: None),
        jitted.linear.register_forward_hook(lambda module, args, result: result * 3),
    ]
    expected = (net.linear(X * 2) * 2 + net.shift) * 2 + 1
    torch.testing.assert_close(jitted(X), expected)
    assert traces(jitted) == 2
    for handle in handles:
        handle.remove()
    check(jitted, net, X)


def test_backward_hooks() -> None:
    net = Net()
    jitted = mlcc.jit(net)
    jitted.register_full_backward_hook(lambda module, into, out: (into[0] * 10,))
    found = X.clone().requires_grad_()
    jitted(found).sum().backward()
    expected = X.clone().requires_grad_()
    net(expected).sum().backward()
    torch.testing.assert_close(found.grad, expected.grad)


class Slotted(torch.nn.Module):
    """Its class has a say in attributes, and answers what a call needs as well."""

    def __getattr__(self, name: str) -> Any:
        return 2.0 if name == "scale" else super().__getattr__(name)

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = torch.nn.Module.__hash__

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Reads what is no attribute."""
        result: torch.Tensor = x * self.scale
        return result


def test_classes_with_own_answers() -> None:
    jitted = mlcc.jit(Slotted())
    assert jitted.scale == 2.0
    assert torch.equal(jitted(X), X * 2)


def test_a_function_is_no_module() -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    assert not isinstance(jitted, torch.nn.Module)
    assert not hasattr(jitted, "parameters")


def test_its_own_submodule_is_refused() -> None:
    net = Net()
    net.fast = mlcc.jit(net)
    with pytest.raises(mlcc.Error, match="fast is what jit made of this very module"):
        net.fast(X)
    fast = net.fast
    del net.fast
    net.held = [fast]
    check(fast, net, X)


def test_parametrizations() -> None:
    """Before it is jitted: the class of the jitted one is its own."""
    net = Net()
    torch.nn.utils.parametrizations.weight_norm(net.linear)
    jitted = mlcc.jit(net)
    check(jitted, net, X)
    layer = mlcc.jit(torch.nn.Linear(3, 3))
    with pytest.raises(
        mlcc.Error, match="JittedLinear stays what it is, found ParametrizedJittedLinear"
    ):
        torch.nn.utils.parametrizations.weight_norm(layer)


class Decorated(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    @mlcc.jit
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The module is an argument."""
        result: torch.Tensor = self.linear(x) + self.training
        return result


def test_a_decorated_forward() -> None:
    net = Decorated()
    before = Decorated.__dict__["forward"]._traces
    for _ in range(2):
        torch.testing.assert_close(net(X), net.linear(X) + 1)
    torch.testing.assert_close(net.eval()(X), net.linear(X))
    assert Decorated.__dict__["forward"]._traces == before + 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.nn.LazyLinear(3),
        lambda: torch.compile(torch.nn.Linear(3, 3), backend="eager"),
        lambda: torch.fx.symbolic_trace(Net()),
        lambda: torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)),
    ],
    ids=["lazy", "compiled", "graph", "sequence"],
)
def test_modules_of_many_kinds(make: Callable[[], Any]) -> None:
    module = make()
    jitted = mlcc.jit(module)
    with mlcc.config.patch(strict=False):
        for _ in range(2):
            jitted.eval()
            check(jitted, module, X)
            jitted.train()
            assert module.training
            jitted(X)
