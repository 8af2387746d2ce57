"""Programs that two processes run over one cache, for test_warm_start.py: as a script it runs all of them.

Prints a line of JSON for each: whether results are eager's, and how many graphs Dynamo traced. PHASE (a variable)
stands in the programs as a constant of different kinds: what was stored for one must not answer for another. With
HOW=jit they go through mlcc.jit.
"""

from __future__ import annotations

import abc
import enum
import functools
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._dynamo.utils import counters

import mlcc

JITS = os.environ.get("HOW") == "jit"  # mlcc.jit in the place of torch.compile
PHASE = int(os.environ.get("PHASE", "0"))
SCALE = PHASE + 2.0
TABLE = {"a": PHASE + 1, "b": 7}
LIST = [1] * (PHASE + 1)
PROGRAMS: dict[str, Callable[[], tuple[Callable[..., Any], list[tuple[Any, ...]]]]] = {}
# Each of the others is loaded by a second process.
UNSTORABLE = {
    *("made from text", "arguments that overlap"),
    *("a hash", "the order of a set", "the order of a constant set", "a result assumed constant"),
    *("a method assumed constant", "instances by code", "a formula of an op"),
    *("a graph that holds parameters", "text without a name"),
}
# The same of traces of mlcc.jit.
UNSTORABLE_TRACES = {
    *("a keyword that is a constant", "a backward pass that never runs", "a module in training"),
    *("a graph break", "a write into an argument", "a linear solve, whose errors are effects"),
    *("an attribute that may be there", "a variable of the environment", "a word in a set"),
    *("an attribute that is missing", "the order of a set", "the order of a constant set"),
    *("a hash", "a method assumed constant", "a formula of an op", "the environment"),
    *("a graph that holds parameters", "a default argument of an inner function"),
}


class Kind(enum.Enum):
    PLUS = 1
    MINUS = 2


KIND = Kind.MINUS if PHASE else Kind.PLUS


def program(name: str) -> Callable[[Any], Any]:
    def register(make: Any) -> Any:
        PROGRAMS[name] = make
        return make

    return register


def x(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 5)))


@program("plain")
def _() -> Any:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.sin(a) * b

    return f, [(x(), x())]


@program("a number among the globals")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a * SCALE + TABLE["a"] + len(LIST)

    return f, [(x(),)]


@program("a number in a closure")
def _() -> Any:
    def make(n: int) -> Any:
        def f(a: torch.Tensor) -> torch.Tensor:
            return a.cos() + n

        return f

    return make(PHASE + 3), [(x(),)]


@program("a function in a closure")
def _() -> Any:
    def plus(a: torch.Tensor) -> torch.Tensor:
        return a + 1

    def minus(a: torch.Tensor) -> torch.Tensor:
        return a - 1

    inner = minus if PHASE else plus

    def f(a: torch.Tensor) -> torch.Tensor:
        return inner(a) * 2

    return f, [(x(),)]


@program("a function of torch in a closure")
def _() -> Any:
    act = torch.nn.functional.gelu if PHASE else torch.nn.functional.silu

    def f(a: torch.Tensor) -> torch.Tensor:
        return act(a)

    return f, [(x(),)]


@program("a decorated function")
def _() -> Any:
    def twice(function: Any) -> Any:
        @functools.wraps(function)
        def run(*args: Any) -> Any:
            return function(*args) * (2 + PHASE)

        return run

    @twice
    def f(a: torch.Tensor) -> torch.Tensor:
        return a.exp()

    return f, [(x(),)]


@program("a default argument")
def _() -> Any:
    def f(a: torch.Tensor, n: float = PHASE + 0.5) -> torch.Tensor:
        return a.tanh() + n

    return f, [(x(),)]


@program("a keyword that is a constant")
def _() -> Any:
    def g(a: torch.Tensor, *, n: int = PHASE) -> torch.Tensor:
        return a + n

    def f(a: torch.Tensor) -> torch.Tensor:
        return g(a) * 3

    return f, [(x(),)]


@program("a member of an enum")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + 1 if KIND is Kind.PLUS else a - 1

    return f, [(x(),)]


class Net(torch.nn.Module):
    gain = 1.5 + PHASE

    def __init__(self, depth: int, slope: float) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(depth))
        self.slope = slope

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            a = torch.nn.functional.leaky_relu(layer(a), self.slope) * self.gain
        return a


@program("a module and its fields")
def _() -> Any:
    return Net(2, 0.1 + PHASE / 10), [(x(),)]


@program("a backward pass that never runs")
def _() -> Any:
    net = Net(1, 0.1)
    return lambda a: net(a), [(x(),)]


@program("the same class, deeper")
def _() -> Any:
    return Net(3, 0.2), [(x(),)]


@program("a module in training")
def _() -> Any:
    net = Net(2, 0.3)

    def f(a: torch.Tensor) -> torch.Tensor:
        return net(a).square().mean()

    return f, [(x().requires_grad_(),)]


@program("a class inside of a function")
def _() -> Any:
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(5) + PHASE)

        def forward(self, a: torch.Tensor) -> torch.Tensor:
            return (a * self.weight).relu()

    return Local(), [(x(),)]


@dataclass
class Config:
    width: int
    bias: bool


@program("a dataclass")
def _() -> Any:
    def f(a: torch.Tensor, config: Config) -> torch.Tensor:
        b = a.sum(1)[: config.width]
        return b + 1 if config.bias else Config(3, True).width * b

    return f, [(x(), Config(2 + PHASE, False)), (x(), Config(3, True))]


def pad(a: torch.Tensor) -> torch.Tensor:
    b = a * 2
    print(end="")
    return b + SCALE


@program("a graph break")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        n = a.shape[0]
        b = pad(a.sin())
        if b.sum() > 1e9:
            return b
        return b.cos() + n

    return f, [(x(),)]


@program("sizes that change")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return torch.softmax(a * a.shape[1], 1)

    return f, [(x(3, 7 + n),) for n in range(4)]


@program("numbers that change")
def _() -> Any:
    def f(a: torch.Tensor, n: int, t: float) -> torch.Tensor:
        return a * n + t

    return f, [(x(), 3 + n, 0.5 * n) for n in range(4)]


@program("dtypes and gradients")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return (a * 2).sigmoid()

    return f, [(x(),), (x().double(),), (x().requires_grad_(),), (x().t(),)]


@program("a write into an argument")
def _() -> Any:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(b)
        return a.t()

    return f, [(x(), x())]


@program("arguments that overlap")
def _() -> Any:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        a.add_(1)
        return b * 2

    t = torch.randn(4, 5)
    pairs = [(t[0], t[0]), (t[:2].view(-1)[:5], t.view(-1)[3:8]), (t[0], t[1])]
    return f, pairs[PHASE:] + pairs[:PHASE]


@program("one tensor twice")
def _() -> Any:
    def f(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a * b + 1

    t = x()
    return f, [(t, t), (t, x())] if PHASE else [(t, x()), (t, t)]


@program("a linear solve, whose errors are effects")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(a.t() @ a + torch.eye(5))

    return f, [(x(),)]


@program("states of autograd")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            b = a * 2
        return a * b

    return f, [(x().requires_grad_(),)]


@program("the order of a dict")
def _() -> Any:
    def f(values: dict[str, torch.Tensor]) -> torch.Tensor:
        total = torch.zeros(())
        for name, value in values.items():
            total = total * 2 + (value.sum() if name == "p" else value.mean())
        return total

    p, q = x(), x()
    return f, [({"q": q, "p": p} if PHASE else {"p": p, "q": q},)]


@program("an attribute that may be there")
def _() -> Any:
    class Box:
        pass

    box = Box()
    if PHASE:
        box.extra = 4.0  # type: ignore[attr-defined]

    def f(a: torch.Tensor) -> torch.Tensor:
        return a + box.extra if hasattr(box, "extra") else a - 1

    return f, [(x(),)]


@program("made from text")
def _() -> Any:
    names: dict[str, Any] = {}
    exec(f"def f(a):\n    return a.sin() * {PHASE + 2}\n", names)
    return names["f"], [(x(),)]


class Plus(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.step(a)

    def step(self, a: torch.Tensor) -> torch.Tensor:
        return a + 1


class Heir(Plus):
    pass


def minus(self: Any, a: torch.Tensor) -> torch.Tensor:
    return a - 1


if PHASE:
    Plus.step = minus  # type: ignore[method-assign]
else:
    Heir.step = minus  # type: ignore[method-assign]


@program("a method that was replaced")
def _() -> Any:
    return Plus(), [(x(),)]


@program("a method that was overridden")
def _() -> Any:
    return Heir(), [(x(),)]


if PHASE:
    torch.nn.Softsign.forward = minus


@program("a method of torch that was replaced")
def _() -> Any:
    return torch.nn.Sequential(torch.nn.Softsign()), [(x(),)]


class Odd(int if PHASE else float):  # type: ignore[misc]
    pass


@program("the bases of a class")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + 1 if issubclass(Odd, int) else a - 1

    return f, [(x(),)]


class Abstract(abc.ABC):
    pass


if PHASE:
    Abstract.register(Config)


@program("instances of an abstract class")
def _() -> Any:
    def f(a: torch.Tensor, config: Config) -> torch.Tensor:
        return a + 1 if isinstance(config, Abstract) else a - 1

    return f, [(x(), Config(1, True))]


@program("instances by code")
def _() -> Any:
    class Anything(abc.ABC):
        @classmethod
        def __subclasshook__(cls, other: type) -> bool:
            return bool(PHASE)

    def f(a: torch.Tensor, config: Config) -> torch.Tensor:
        return a + 1 if isinstance(config, Anything) else a - 1

    return f, [(x(), Config(1, True))]


class Level(enum.IntEnum):
    LOW = 1 + PHASE


@program("what a member of an enum holds")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a * Level.LOW

    return f, [(x(),)]


def scaled(a: torch.Tensor) -> torch.Tensor:
    return a * 2 if os.environ.get("FRAME_PROGRAMS") == "1" else a * 3


@program("a variable of the environment")
def _() -> Any:
    if PHASE:
        os.environ["FRAME_PROGRAMS"] = "1"

    def f(a: torch.Tensor) -> torch.Tensor:
        return scaled(a)

    return f, [(x(),)]


@program("a key that is missing")
def _() -> Any:
    table = {"a": 2.0, "b": 3.0} if PHASE else {"a": 2.0}

    def f(a: torch.Tensor) -> torch.Tensor:
        try:
            return a * table["b"]
        except KeyError:
            return a - 1

    return f, [(x(),)]


@program("an attribute that is missing")
def _() -> Any:
    box = SimpleNamespace(extra=4.0) if PHASE else SimpleNamespace()

    def f(a: torch.Tensor) -> torch.Tensor:
        try:
            return a * box.extra
        except AttributeError:
            return a - 1

    return f, [(x(),)]


own_module = ModuleType("own_module")
sys.modules["own_module"] = own_module
if PHASE:
    own_module.extra = 4.0  # type: ignore[attr-defined]


@program("a name that a module lacks")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a * getattr(own_module, "extra", 3.0)

    return f, [(x(),)]


WORDS = {"one", "three", "fifteen", "seventeen"}


@program("the order of a set")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        words = list(WORDS)
        return a + len(words[0])

    return f, [(x(),)]


@program("a word in a set")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + 1 if "one" in WORDS and "two" not in {"three", "four"} else a

    return f, [(x(),)]


@program("the order of a constant set")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        for word in {"one", "three", "fifteen", "seventeen"}:
            a = a * 0.5 + len(word)
        return a

    return f, [(x(),)]


@program("a hash")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + hash("one") % 7

    return f, [(x(),)]


@torch.compiler.assume_constant_result
def constant() -> int:
    return PHASE


@program("a result assumed constant")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a + constant()

    return f, [(x(),)]


class WithConstant(torch.nn.Module):
    @torch.compiler.assume_constant_result
    def constant(self) -> int:
        return PHASE

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return a + self.constant()


@program("a method assumed constant")
def _() -> Any:
    return WithConstant(), [(x(),)]


library = torch.library.Library("frame_programs", "DEF")
library.define("step(Tensor a) -> Tensor")
library.impl("step", (lambda a: a + 1) if PHASE else (lambda a: a - 1), "CompositeImplicitAutograd")


@program("a formula of an op")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return torch.ops.frame_programs.step(a) * 2

    return f, [(x(),)]


@program("a graph that holds parameters")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        weight = torch.nn.Parameter(torch.ones(5))
        optimizer = torch.optim.SGD([weight], lr=0.1 + PHASE, momentum=0.5)
        for _ in range(2):
            weight.grad = a[0] * weight.detach()
            optimizer.step()
        return weight.detach() + 0

    return f, [(x(),)]


@program("text without a name")
def _() -> Any:
    names: dict[str, Any] = {}
    exec("def f(a):\n    b = a.sin()\n    print(end='')\n    return b * 2\n", names)
    return names["f"], [(x(),)]


@program("a default argument of an inner function")
def _() -> Any:
    def helper(a: torch.Tensor, n: float = PHASE + 0.5) -> torch.Tensor:
        return a * n

    def f(a: torch.Tensor) -> torch.Tensor:
        return helper(a).sin()

    return f, [(x(),)]


class Holder:
    factor = PHASE + 1.0


@program("an attribute of a class")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        return a * Holder.factor

    return f, [(x(),)]


def with_attribute(a: torch.Tensor) -> Any:
    return a * with_attribute.factor  # type: ignore[attr-defined]


with_attribute.factor = PHASE + 2.0  # type: ignore[attr-defined]


@program("an attribute of the function")
def _() -> Any:
    return with_attribute, [(x(),)]


def double_of(a: torch.Tensor) -> torch.Tensor:
    return a * 2


def half_of(a: torch.Tensor) -> torch.Tensor:
    return a / 2


class Scaled(torch.nn.Module):
    def __init__(self, settings: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(5, 3)
        self.settings = settings

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return self.linear(a) * self.settings.factor


@program("an attribute of a module's object")
def _() -> Any:
    return Scaled(SimpleNamespace(factor=PHASE + 1.0)).requires_grad_(False), [(x(),)]


@program("tied parameters")
def _() -> Any:
    net = torch.nn.Sequential(torch.nn.Linear(5, 5), torch.nn.Tanh(), torch.nn.Linear(5, 5))
    if PHASE:
        net[2].weight = net[0].weight
    return net.requires_grad_(False), [(x(),)]


@program("a hook of a module")
def _() -> Any:
    net = torch.nn.Linear(5, 3).requires_grad_(False)
    torch.utils.hooks.RemovableHandle.next_id = 1000  # guards of Dynamo hold a hook's number
    net.register_forward_hook(double if PHASE else halve)
    return net, [(x(),)]


@program("a module in the other mode")
def _() -> Any:
    net = torch.nn.Sequential(
        torch.nn.Linear(5, 3), torch.nn.BatchNorm1d(3, track_running_stats=False)
    )
    return net.requires_grad_(False).train(PHASE == 0), [(x(),)]


def double(module: Any, given: Any, result: torch.Tensor) -> torch.Tensor:
    return result * 2


def halve(module: Any, given: Any, result: torch.Tensor) -> torch.Tensor:
    return result / 2


RELU = torch.nn.functional.relu


def leaky(a: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return torch.nn.functional.leaky_relu(a)


@program("a function of torch that was replaced")
def _() -> Any:
    torch.nn.functional.relu = leaky if PHASE else RELU
    return torch.nn.ReLU(), [(x(),)]


@program("results of all kinds")
def _() -> Any:
    torch.nn.functional.relu = RELU

    def f(a: torch.Tensor) -> Any:
        return {"sum": a.sum(), "shape": a.shape, "list": [a * 2, PHASE, None]}["list"][0]

    return f, [(x(),), (x(7, 2),)]


class Listed(torch.nn.Module):
    steps = (torch.cos, double_of) if PHASE else (torch.sin, half_of)

    def forward(self, a: torch.Tensor) -> torch.Tensor:
        for step in self.steps:
            a = step(a)
        return a


@program("functions that a class holds")
def _() -> Any:
    return Listed(), [(x(),)]


@program("a name that is imported inside")
def _() -> Any:
    own_module.scale = PHASE + 1.5  # type: ignore[attr-defined]

    def f(a: torch.Tensor) -> torch.Tensor:
        from own_module import scale  # type: ignore[import-not-found]

        return a * scale

    return f, [(x(),)]


@program("an argument that is written")
def _() -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        a.mul_(2 + PHASE)
        return a.sin()

    return f, [(x(),)]


@program("a number that decides")
def _() -> Any:
    def f(a: torch.Tensor, n: int) -> torch.Tensor:
        for _ in range(n):
            a = a.sin() + PHASE
        return a

    return f, [(x(), 2), (x(), 3)]


@program("the environment")
def _() -> Any:
    os.environ["FRAME_PROGRAMS"] = str(PHASE)

    def f(a: torch.Tensor) -> torch.Tensor:
        return a + float(os.environ["FRAME_PROGRAMS"])

    return f, [(x(),)]


def copy_of(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    return value


def arguments(call: tuple[Any, ...]) -> tuple[Any, ...]:
    """Copies, which share memory as the arguments do."""
    tensors = [one for one in call if isinstance(one, torch.Tensor)]
    if len(tensors) == 2 and tensors[0] is tensors[1]:
        only = copy_of(tensors[0])
        return (only, only)
    bases = {id(one._base): one._base for one in tensors if one._base is not None}
    copies = {name: base.clone() for name, base in bases.items()}
    return tuple(
        copies[id(one._base)].as_strided(one.shape, one.stride(), one.storage_offset())
        if isinstance(one, torch.Tensor) and one._base is not None and not one.requires_grad
        else copy_of(one)
        for one in call
    )


def outcome(function: Any, call: tuple[Any, ...]) -> list[Any]:
    """Results, arguments after the call, and gradients."""
    given = arguments(call)
    result = function(*given)
    leaves = [one for one in given if isinstance(one, torch.Tensor)]
    wanted = [one for one in leaves if one.requires_grad]
    if isinstance(function, torch.nn.Module):
        wanted += [one for one in function.parameters() if one.requires_grad]
    gradients = list(torch.autograd.grad(result.sum(), wanted)) if wanted else []
    return [result.detach(), *(one.detach() for one in leaves), *gradients]


def graphs_traced() -> int:
    return counters["aot_autograd"]["total"] if JITS else counters["stats"]["unique_graphs"]


def main() -> None:
    warnings.simplefilter("ignore", mlcc.EagerFallbackWarning)
    for name, make in PROGRAMS.items():
        torch.manual_seed(0)
        function, calls = make()
        before = graphs_traced()
        error = ""
        try:
            compiled = mlcc.jit(function) if JITS else torch.compile(function, backend="mlcc")
            for call in calls:
                torch.testing.assert_close(outcome(compiled, call), outcome(function, call))
        except mlcc.Error:  # what no trace holds is no program of jit's
            error = "" if JITS else "mlcc.Error"
        except Exception as exception:
            error = f"{type(exception).__name__}: {exception}"[-500:]
        graphs = graphs_traced() - before
        print(json.dumps({"name": name, "error": error, "graphs": graphs}), flush=True)


if __name__ == "__main__":
    main()
