"""Calls of `mlcc.jit`: their leaves, the key that those with one trace share, and in words what tells two apart."""

from __future__ import annotations

import enum
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import torch

from mlcc.capture import code_owners, reach, trace_symbols
from mlcc.capture.guards import exact, is_plain
from mlcc.torch_private import trace_state

# Arguments that are leaves for sure; a call of nothing else has their number as its structure.
PLAIN_LEAVES = {torch.Tensor, torch.nn.Parameter, int, float, bool, str}

CONSTANTS = (
    bool,
    str,
    type(None),
    enum.Enum,
    torch.dtype,
    torch.device,
    torch.memory_format,
    torch.layout,
)


class Same:
    """An object as a part of keys: equal to nothing but itself, whatever its class says."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)

    def __repr__(self) -> str:
        return str(getattr(self.value, "__name__", type(self.value).__name__))


class Call:
    """The arguments of one call."""

    __slots__ = ("fixed", "key", "leaves", "repeated", "structure")

    def __init__(
        self,
        key: Any,
        leaves: list[Any],
        structure: Any,
        fixed: tuple[Any, ...],
        repeated: tuple[tuple[int, int], ...],
    ) -> None:
        self.key = key
        self.leaves = leaves
        self.structure = structure
        self.fixed = fixed
        self.repeated = dict(repeated)  # place of a tensor -> where the same one stands first

    @property
    def held(self) -> list[Any]:
        """The leaves that a trace is for by identity: modules, functions."""
        return [form[1].value for form in self.key[1] if type(form[-1]) is Same]

    @property
    def modules(self) -> list[torch.nn.Module]:
        """The modules among the leaves."""
        return [leaf for leaf in self.held if isinstance(leaf, torch.nn.Module)]

    @property
    def numbers(self) -> list[trace_symbols.Place]:
        """The leaves that may be symbols."""
        return [(i, None) for i, leaf in enumerate(self.leaves) if type(leaf) in (int, float)]

    @property
    def sizes(self) -> list[trace_symbols.Place]:
        """The dimensions that may be symbols."""
        tensors = (
            (i, leaf) for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)
        )
        return [(i, dim) for i, leaf in tensors for dim in range(leaf.dim())]


class Description:
    """What a log line says about a traced call."""

    def __init__(self, call: Call) -> None:
        self._structure, self._forms, self._fixed, self._state, self._repeated = call.key
        self._shapes = [
            tuple(leaf.shape)
            if isinstance(leaf, torch.Tensor)
            else (leaf if type(leaf) in (int, float) else None)
            for leaf in call.leaves
        ]

    def difference(self, now: Description, names: list[str]) -> str:
        """The first part of their keys in which two calls differ, and what follows from it; ''."""
        if self._structure != now._structure:
            return "the nesting or number of the arguments changed"
        for place, name in enumerate(names):
            if self._forms[place] != now._forms[place]:
                return _form_difference(name, self._forms[place], now._forms[place])
        if self._fixed != now._fixed:
            return "a static argument changed; each value is traced once"
        if self._state != now._state:
            return (
                "grad, inference, autocast or deterministic mode, the default dtype "
                "or the precision of products changed"
            )
        if self._repeated != now._repeated:
            return "other arguments are one tensor; each such pattern is traced once"
        return ""

    def failure(self, now: Description, names: list[str], places: list[trace_symbols.Place]) -> str:
        """What a guard that speaks of these sizes and numbers found then and now: the first of them that differs."""
        for place, dim in places:
            old: Any = self._shapes[place]
            new: Any = now._shapes[place]
            name = names[place]
            if dim is not None:
                old, new, name = old[dim], new[dim], f"{name}.size({dim})"
            if (type(old), old) != (type(new), new) or len(places) == 1:
                return f"{name} was {old}, now {new}, for which a guard of the trace fails"
        return ""


def _form_difference(name: str, old: Any, new: Any) -> str:
    words = ("__class__", "dtype", "device", "dim()", "layout", "requires_grad", "is_inference()")
    if len(old) == len(new) == len(words):
        for word, a, b in zip(words, old, new, strict=True):
            if a != b:
                return f"{name}.{word} was {a}, now {b}; each is traced once"
    return f"{name} was {_form_text(old)}, now {_form_text(new)}; each is traced once"


def _form_text(form: Any) -> str:
    if len(form) == 2 and type(form[1]) is Same:
        return repr(form[1])
    if len(form) == 2:
        return repr(float.fromhex(form[1]) if form[0] is float else form[1])
    return "a tensor" if len(form) > 2 else f"a {form[0].__name__}"


def leaf_names(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[str]:
    """How the user calls each leaf: x, or args[0]['key'] inside of containers."""
    try:
        parameters = list(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        parameters = []
    names = []
    for path in trace_state.leaf_paths((args, kwargs)):
        first, second, *rest = path
        positional = first == "[0]"
        number = int(second.strip("[]")) if positional else -1
        root = second.strip("[]'\"") if not positional else f"args{second}"
        if positional and number < len(parameters):
            root = parameters[number]
        names.append(root + "".join(rest))
    return names


def place_of(function: Callable[..., Any]) -> str:
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None:
        return ""
    return f" ({code.co_filename.rsplit('/', 1)[-1]}:{code.co_firstlineno})"


class RunsEagerly(Exception):  # noqa: N818 (an expected answer)
    """Arguments for which the original function runs; the text says why."""


def repeated_tensors(leaves: list[Any]) -> tuple[tuple[int, int], ...]:
    """(place of a tensor, where the same one stands first)."""
    first: dict[int, int] = {}
    repeated = []
    for place, leaf in enumerate(leaves):
        if isinstance(leaf, torch.Tensor) and first.setdefault(id(leaf), place) != place:
            repeated.append((place, first[id(leaf)]))
    return tuple(repeated)


def form_of(leaf: Any, dynamic: bool) -> Any:
    """What the key says of a leaf. RunsEagerly for what no trace can take."""
    kind = type(leaf)
    if kind is torch.Tensor or kind is torch.nn.Parameter:
        if leaf.layout != torch.strided:
            raise RunsEagerly(f"an argument is a tensor of layout {leaf.layout}")
        if leaf.is_conj() or leaf.is_neg():
            raise RunsEagerly("an argument is a conjugate or negated view")
        for name in leaf.__dict__ if leaf.__dict__ else ():
            if name[0] != "_":
                raise RunsEagerly(f"an argument has an attribute, {name}")
        layout = layout_of(leaf) if dynamic else (leaf.shape, leaf.stride())
        return (
            kind.__name__,
            leaf.dtype,
            leaf.device,
            leaf.dim(),
            layout,
            leaf.requires_grad,
            leaf.is_inference(),
        )
    if isinstance(leaf, torch.Tensor | torch.Generator):
        raise RunsEagerly(f"an argument is a {kind.__name__}")
    if isinstance(leaf, CONSTANTS) or kind is complex:
        return exact(leaf)
    if kind is int or kind is float:
        return (kind,) if varies(leaf, dynamic) else exact(leaf)
    if isinstance(leaf, torch.nn.Module):
        return kind, Same(leaf)
    if isinstance(leaf, types.FunctionType | types.BuiltinFunctionType):
        reason = reach.reason_not_to_hold(leaf, code_owners.is_user_code)
        if reason:
            raise RunsEagerly(f"an argument, a function, {reason}")
        return kind, Same(leaf)
    raise RunsEagerly(f"an argument is a {_class_name(kind)}")


def _class_name(kind: type) -> str:
    """ "list", "numpy.ndarray", "Cache" of the user's code."""
    package = kind.__module__.partition(".")[0]
    is_known = package in ("builtins", "__main__") or code_owners.is_user_module(kind.__module__)
    return kind.__name__ if is_known else f"{package}.{kind.__name__}"


def contexts_of(structure: Any) -> tuple[Any, ...]:
    """What the classes of a structure that a program registered keep beside their leaves.

    RunsEagerly where it may change without notice: it is neither plain nor a class.
    """
    found = []
    for kind, context in trace_state.registered_nodes(structure):
        if kind is torch.Size:  # a trace would find a tuple in its place
            raise RunsEagerly("an argument is a torch.Size")
        if not _is_fixed(context):
            raise RunsEagerly(f"an argument holds a {_class_name(kind)}, whose context may change")
        found.append(_frozen(context))
    return tuple(found)


def _is_fixed(context: Any) -> bool:
    if type(context) in (tuple, list):
        return all(map(_is_fixed, context))
    return isinstance(context, type) or is_plain(context)


def _frozen(context: Any) -> Any:
    if type(context) in (tuple, list):
        return type(context), tuple(map(_frozen, context))
    return exact(context)


def layout_of(tensor: torch.Tensor) -> Any:
    """ "c" for row-major, the order of the dimensions for other dense layouts, else sizes and strides themselves."""
    strides, shape = tensor.stride(), tensor.shape
    if tensor.is_contiguous():
        return (tuple(shape), strides) if _may_be_channels_last(tensor) else "c"
    order = sorted(range(tensor.dim()), key=lambda d: (strides[d], shape[d]))
    expected = 1
    for dim in order:
        if shape[dim] != 1 and strides[dim] != expected:
            return (tuple(shape), strides)
        expected *= shape[dim]
    return tuple(order) if 1 not in shape else (tuple(shape), strides)


def _may_be_channels_last(tensor: torch.Tensor) -> bool:
    """Of a row-major image or volume: whether strides of dimensions of size 1 tell torch's kernels another format."""
    if tensor.dim() not in (4, 5):
        return False
    elements = 1
    for size, stride in zip(reversed(tensor.shape), reversed(tensor.stride()), strict=True):
        if stride != elements:
            return True
        elements *= max(size, 1)
    return False


_INT_LIMIT = 2**31


def varies(leaf: Any, dynamic: bool) -> bool:
    """Whether the leaf is an input of the trace.

    A NaN is a constant: to a symbol, it would be equal to itself. So is an infinity, a zero among floats, whose sign no
    relation tells, and an int whose products may not fit in 64 bits.
    """
    if isinstance(leaf, torch.Tensor):
        return True
    if not dynamic:
        return False
    return (type(leaf) is float and leaf != 0 and math.isfinite(leaf)) or (
        type(leaf) is int and abs(leaf) < _INT_LIMIT
    )


def plain_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """The Python function that a call of a function or module runs."""
    return function.forward if isinstance(function, torch.nn.Module) else function
