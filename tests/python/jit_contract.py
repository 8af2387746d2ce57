"""What `mlcc.jit` guards, refuses and cannot see: one small program for each sentence of docs/jit.md.

usage: python -m tests.python.jit_contract: writes the lists into docs/jit.md
"""

from __future__ import annotations

import contextlib
import functools
import os
import random
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import mlcc

DOC = Path(__file__).resolve().parents[2] / "docs" / "jit.md"

SCALE: Any = 2.0
NAMES: dict[str, float] = {"scale": 2.0}


class Settings:
    scale = 2.0


class Slotted:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 2.0


class Net(torch.nn.Module):
    """A linear layer, and what attributes may hold."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.scale = 2.0
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Asks for everything that a test may change."""
        inner = getattr(self, "inner", None)
        scale = self.scale if inner is None else _scale_in(inner)
        return self.linear(x) * scale


def _scale_in(inner: Any) -> float:
    if isinstance(inner, list):
        return float(inner[0])
    return float(inner.inner.scale if hasattr(inner, "inner") else inner.scale)


def helper(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    """Has a default argument."""
    return x * scale


def lookup(jitted: Any) -> Any:
    """What looks traces up: of a jitted module, a part of it."""
    return getattr(jitted, "_mlcc_jit", jitted)


# A program: (the function, a change of what it reads, the arguments of its calls).
Program = tuple[Callable[..., Any], Callable[[], Any], tuple[Any, ...]]
X = torch.arange(1.0, 7.0).reshape(2, 3)


def _global_value() -> Program:
    return lambda x: x * SCALE, lambda: globals().update(SCALE=3.0), (X,)


def _in_a_dict() -> Program:
    return lambda x: x * NAMES["scale"], lambda: NAMES.update(scale=3.0), (X,)


def _closure() -> Program:
    scale = 2.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: x * scale, change, (X,)


def _default() -> Program:
    def change() -> None:
        helper.__defaults__ = (3.0,)

    return lambda x: helper(x), change, (X,)


def _class_attribute() -> Program:
    return lambda x: x * Settings.scale, lambda: setattr(Settings, "scale", 3.0), (X,)


def _function() -> Program:
    def replaced(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
        return x + scale

    return lambda x: helper(x), lambda: globals().update(helper=replaced), (X,)


def _of_module(change: Callable[[Net], Any], **attributes: Any) -> Program:
    net = Net(**attributes)
    return net, lambda: change(net), (X,)


def _hook(net: Net) -> None:
    net.register_forward_hook(lambda module, args, result: result + 1)


def _behind_vmap() -> Program:
    net = Net()
    weight = torch.nn.Parameter(torch.ones(3, 3))
    return torch.vmap(net), lambda: setattr(net.linear, "weight", weight), (X,)


def _no_grad() -> Program:
    change = functools.partial(torch.set_grad_enabled, False)
    return lambda x: (x * 2, torch.is_grad_enabled())[0], change, (X,)


def _nested(**attributes: Any) -> Any:
    return types.SimpleNamespace(inner=types.SimpleNamespace(**attributes))


def _size() -> Program:
    x = X.clone()

    def change() -> None:
        x.resize_(1, 3)

    return lambda x: x + 1 if x.shape[0] > 1 else x - 1, change, (x,)


def _number() -> Program:
    given = [3.0]
    return lambda x, v: x * len(f"{v[0]}"), lambda: given.__setitem__(0, 0.125), (X, given)


def _same_tensor() -> Program:
    given = [X, X]
    return (
        lambda v: v[0] + 1 if v[0] is v[1] else v[0],
        lambda: given.__setitem__(1, X + 0),
        (given,),
    )


def _module_argument() -> Program:
    net = Net()
    return lambda x, net: net(x), lambda: setattr(net, "scale", 3.0), (X, net)


def _function_argument() -> Program:
    given: list[Any] = [helper]

    def replaced(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    return lambda x, v: v[0](x), lambda: given.__setitem__(0, replaced), (X, given)


class Node:
    """A class that is registered with torch's pytree."""

    def __init__(self, values: torch.Tensor, scale: float) -> None:
        self.values, self.scale = values, scale


torch.utils._pytree.register_pytree_node(
    Node, lambda node: ([node.values], node.scale), lambda parts, scale: Node(parts[0], scale)
)


def _registered() -> Program:
    node = Node(X, 2.0)
    return lambda node: node.values * node.scale, lambda: setattr(node, "scale", 3.0), (node,)


GUARDS: dict[str, Callable[[], Program]] = {
    "a size or a number that a branch depends on": _size,
    "the value of a number that is asked for, by its text or hash, say": _number,
    "which arguments are one tensor": _same_tensor,
    "grad, inference, autocast and deterministic mode, the default dtype, the precision of products": _no_grad,
    "a plain value in a global: a number, a string, None, a dtype, or lists, tuples and dicts of them": _global_value,
    "what a list or dict in a global holds": _in_a_dict,
    "a plain value in a closure variable": _closure,
    "a plain value among the default arguments of a function that is called": _default,
    "a plain attribute of a class, a function or a Python module": _class_attribute,
    "a function or class that is defined anew": _function,
    "a parameter, a buffer or a submodule of the jitted module that is replaced": lambda: (
        _of_module(lambda net: setattr(net.linear, "weight", torch.nn.Parameter(torch.ones(3, 3))))
    ),
    "the same of modules behind a library's wrapper, as `torch.vmap(net)`": _behind_vmap,
    "dtype, device, layout and requires-grad of parameters and buffers": lambda: _of_module(
        lambda net: net.linear.requires_grad_(False)
    ),
    "hooks of the module": lambda: _of_module(_hook),
    "a plain attribute of the module, and of the class": lambda: _of_module(
        lambda net: setattr(net, "scale", 3.0)
    ),
    "what a list, dict or set in an attribute holds": lambda: _of_module(
        lambda net: net.inner.__setitem__(0, 3.0), inner=[2.0]
    ),
    "a plain field of an object in an attribute": lambda: _of_module(
        lambda net: setattr(net.inner, "scale", 3.0), inner=types.SimpleNamespace(scale=2.0)
    ),
    "which module an argument is, and all of the above of it": _module_argument,
    "which function an argument is, with what it reads": _function_argument,
    "what an argument of a registered class keeps beside its tensors and numbers": _registered,
}


# -- what it refuses: (the function, its arguments, what the error or the log says)
Refusal = tuple[Callable[..., Any], tuple[Any, ...], str]


class _Callable:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x


def _reads(value: Any, words: str) -> Refusal:
    return (lambda x: value(x) if callable(value) else (x, value)[0]), (X,), words


def _with_default() -> Refusal:
    def f(x: torch.Tensor, net: Any = torch.nn.Linear(3, 3)) -> Any:
        return net(x)

    return f, (X,), "a default argument of f is a module"


ERRORS: dict[str, Callable[[], Refusal]] = {
    "a tensor in a global or a closure variable": lambda: _reads(
        X, "variable value .* is a tensor"
    ),
    "a module there": lambda: _reads(torch.nn.Linear(3, 3), "is a module"),
    "another object there": lambda: _reads(Slotted(), "is a Slotted"),
    "a function, method or partial there that holds a module, as `torch.vmap(net)`": lambda: (
        (lambda run: lambda x: run(x))(torch.vmap(torch.nn.Linear(3, 3))),
        (X,),
        "holds a module",
    ),
    "a module that is a default argument": _with_default,
    "a callable object or a method of one that is no module": lambda: (
        _Callable(),
        (X,),
        "attributes of a _Callable would be read",
    ),
    "a parameter that it reaches in any other way": lambda: (
        torch.vmap(functools.partial(torch.mul, torch.nn.Parameter(torch.ones(3)))),
        (X,),
        "a parameter, or a tensor that requires gradients",
    ),
    "Python code that asks for the value of a tensor": lambda: (
        lambda x: x if x.sum() > 0 else -x,
        (X,),
        "asks for the value of a tensor",
    ),
}


def _write_global(x: torch.Tensor) -> torch.Tensor:
    NAMES["calls"] = NAMES.get("calls", 0.0) + 1
    return x * 1


def _write_attribute() -> Refusal:
    class Counting(torch.nn.Module):
        calls = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return x * self.calls

    return Counting(), (X,), "it changes the module's calls"


def _write_data(x: torch.Tensor) -> torch.Tensor:
    x.data = x.data * 2
    return x * 2


def _with_attribute() -> torch.Tensor:
    x = X.clone()
    x.note = 1
    return x


class _Sub(torch.Tensor):
    pass


class _Unregistered(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.held = [torch.ones(3, requires_grad=True)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.held[0]


def _overlapping() -> Refusal:
    memory = torch.zeros(4)
    return lambda x, y: x.add_(1) + y, (memory[:3], memory[1:]), "overlaps"


EAGER: dict[str, Callable[[], Refusal]] = {
    "writes to globals, closure variables, lists, dicts and attributes of classes and functions": lambda: (
        _write_global,
        (X,),
        "it changes",
    ),
    "writes to attributes of the module": _write_attribute,
    "`.data`, `.grad`, `.requires_grad` and attributes of an argument that are written": lambda: (
        _write_data,
        (X.clone(),),
        "it changes data of an argument",
    ),
    "`.grad`, `.is_leaf` and `.storage_offset()` of an argument that are read": lambda: (
        lambda x: x * (2 if x.grad is None else 3),
        (X,),
        "it reads grad",
    ),
    "draws from the generators of Python and NumPy, and seeds": lambda: (
        lambda x: x * random.random() * 0,
        (X,),
        "it draws from the generator",
    ),
    "results that are no tensors, numbers, strings or containers of them": lambda: (
        lambda x: (x, Settings),
        (X,),
        "a result is a type",
    ),
    "a tensor in an attribute that is to be trained, or has one element, and is no parameter or buffer": lambda: (
        _Unregistered(),
        (X,),
        "register it",
    ),
    "arguments that overlap others, or are followed by autograd, if they are written": _overlapping,
    "subclasses of tensors, generators, sparse tensors, conjugated views among the arguments": lambda: (
        lambda x: x + 1,
        (X.as_subclass(_Sub),),
        "an argument is a _Sub",
    ),
    "arguments of classes that are not registered with torch's pytree, of NumPy's too": lambda: (
        lambda x, y: x * y.scale,
        (X, Slotted()),
        "an argument is a Slotted",
    ),
    "methods, and functions that hold tensors or objects, among the arguments": lambda: (
        lambda x, function: function(x),
        (X, X.add),
        "an argument, a function, is a method of a Tensor",
    ),
    "arrays of NumPy's that are made of tensors": lambda: (
        lambda x: x + torch.from_numpy(x.numpy()),
        (X,),
        "it makes an array of NumPy's",
    ),
    "functions to which `torch.compiler.disable` was applied": lambda: (
        torch.compiler.disable(lambda x: x + 1),
        (X,),
        "torch.compiler.disable",
    ),
    "tensors with attributes of the program's among the arguments": lambda: (
        lambda x: x + 1,
        (_with_attribute(),),
        "an argument has an attribute, note",
    ),
    "calls under torch's modes, transforms and forward-mode derivatives": lambda: (
        lambda x: x.sin().sum(),
        (X,),
        "a mode of torch",
    ),
}


# -- what it cannot see


def _slots() -> Program:
    return _of_module(lambda net: setattr(net.inner, "scale", 3.0), inner=Slotted())


def _code() -> Program:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def g(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    return lambda x: f(x), lambda: setattr(f, "__code__", g.__code__), (X,)


def _environment() -> Program:
    name = "JIT_CONTRACT_TEXT"
    os.environ.pop(name, None)
    change = functools.partial(os.environ.update, {name: "abc"})
    return lambda x: x * len(os.environ.get(name, "ab")), change, (X,)


UNSEEN: dict[str, Callable[[], Program]] = {
    "fields in `__slots__`": _slots,
    "what lies deeper than the fields of an object in an attribute": lambda: _of_module(
        lambda net: setattr(net.inner.inner, "scale", 3.0), inner=_nested(scale=2.0)
    ),
    "`__code__` of a function that is replaced": _code,
    "what a call looks up elsewhere: `os.environ`, files, elements of a `deque` or an array": _environment,
}


def lists() -> str:
    """The part of the document that is generated."""
    parts = [
        ("Guarded: a call that finds another one is traced anew", GUARDS),
        ("Refused by an `mlcc.Error` that names it", ERRORS),
        (
            "Refused by running the original function, told once by `mlcc.EagerFallbackWarning`",
            EAGER,
        ),
        ("Not seen: a call goes on with what the trace found", UNSEEN),
    ]
    text = ""
    for title, cases in parts:
        text += f"\n## {title}\n\n" + "".join(f"- {sentence}\n" for sentence in cases)  # type: ignore[attr-defined]
    return text


BEGIN, END = "<!-- generated by tests/python/jit_contract.py -->\n", "<!-- end -->"


def written(document: str) -> str:
    """The document with its lists as they are to be."""
    head, _, rest = document.partition(BEGIN)
    return head + BEGIN + lists() + "\n" + END + rest.partition(END)[2]


@contextlib.contextmanager
def restored() -> Any:
    """Globals and modes as they were."""
    before, grad = dict(globals()), torch.is_grad_enabled()
    defaults, scale, names = helper.__defaults__, Settings.scale, dict(NAMES)
    try:
        yield
    finally:
        before["helper"].__defaults__, Settings.scale = defaults, scale
        NAMES.clear()
        NAMES.update(names)
        globals().update({name: before[name] for name in ("SCALE", "helper")})
        torch.set_grad_enabled(grad)


if __name__ == "__main__":
    DOC.write_text(written(DOC.read_text()))
    print(f"{DOC}: written, for mlcc {mlcc.__version__}")
