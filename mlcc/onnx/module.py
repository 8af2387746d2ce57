"""The module that a model becomes."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from mlcc._errors import Error
from mlcc.onnx.program import STORE, Graph, as_tensor
from mlcc.onnx.sizes import Sizes


class OnnxModule(nn.Module):
    """A model of ONNX in torch's ops.

    Its inputs are those of the graph, in order or by name. It returns a tensor, or a tuple where the graph has several
    outputs. Initializers are parameters and buffers under the names that they have in the file.
    """

    mlcc_may_read_data = (
        True  # the file decides, whose user cannot write it in another way: mlcc.jit asks for this
    )

    def __init__(self, graph: Graph, tensors: Mapping[str, tuple[torch.Tensor, bool]]) -> None:
        """`tensors`: initializers, and whether each is trained."""
        super().__init__()
        self._graph = graph
        self._parameters_of_forward = _identifiers(graph.inputs)
        self._places: tuple[tuple[str, tuple[str, ...]], ...] = tuple(
            (name, self._register(name, tensor, trained))
            for name, (tensor, trained) in tensors.items()
        )

    @property
    def input_names(self) -> tuple[str, ...]:
        return self._graph.inputs

    @property
    def parameter_names(self) -> tuple[str, ...]:
        """Of `forward`, one for each input: their names as far as Python takes these."""
        return self._parameters_of_forward

    @property
    def output_names(self) -> tuple[str, ...]:
        return self._graph.outputs

    @property
    def output_types(self) -> tuple[int, ...]:
        """Codes of TensorProto.DataType; 0 where the file tells none."""
        return self._graph.output_types

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Replaced by one that has the signature of the model."""
        return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        store: dict[str, torch.Tensor] = {}
        for name, path in self._places:
            owner = self
            for part in path[:-1]:
                owner = owner._modules[part]
            store[name] = getattr(owner, path[-1])
        scope = _bind(self._graph.inputs, self._parameters_of_forward, args, kwargs)
        scope = {name: _as_value(value) for name, value in scope.items()}
        scope[STORE] = store
        for name, sizes in zip(self._graph.inputs, self._graph.input_sizes, strict=True):
            if isinstance(scope[name], torch.Tensor):
                _fix_sizes(scope[name], sizes)
        results = tuple(as_tensor(value) for value in self._graph.run(scope))
        return results[0] if len(results) == 1 else results

    def _register(self, name: str, tensor: torch.Tensor, trained: bool) -> tuple[str, ...]:
        """Put the tensor where its key of state_dict is its name, as far as names of modules allow."""
        parts = (
            name.split(".") if re.fullmatch(r"[^.]+(\.[^.]+)*", name) else [name.replace(".", "_")]
        )
        owner: nn.Module = self
        for i, part in enumerate(parts[:-1]):
            child = owner._modules.get(part)
            if child is None:
                if hasattr(owner, part):  # a tensor or a method has that name
                    parts = [*parts[:i], "_".join(parts[i:])]
                    break
                child = nn.Module()
                owner.add_module(part, child)
            owner = child
        last = parts[-1]
        while not last or hasattr(owner, last):
            last += "_"
        if trained:
            owner.register_parameter(last, nn.Parameter(tensor))
        else:
            owner.register_buffer(last, tensor)
        return (*parts[:-1], last)


def _as_value(value: Any) -> Any:
    """Python's numbers, and lists of them, are constants of a trace; tensors would be data."""
    if isinstance(value, (bool, int, float, torch.SymInt)):
        dtype = (
            torch.bool
            if isinstance(value, bool)
            else torch.float32
            if isinstance(value, float)
            else torch.int64
        )
        return Sizes([value], 0, dtype)
    is_list = isinstance(value, (list, tuple)) and len(value) > 0
    if is_list and all(isinstance(item, (int, torch.SymInt)) for item in value):
        return Sizes(value)
    return value


def _fix_sizes(x: torch.Tensor, told: tuple[int, ...]) -> bool:
    """Where the file tells a size, a trace need not keep it symbolic: the comparison fixes it. It is no check."""
    return all(want <= 1 or have == want for have, want in zip(x.shape, told, strict=False))


def module_of(graph: Graph, tensors: Mapping[str, tuple[torch.Tensor, bool]]) -> OnnxModule:
    """The model's inputs are parameters of `forward`, which torch.export and others ask for its signature."""

    def forward(self: OnnxModule, *args: Any, **kwargs: Any) -> Any:
        return self._call(args, kwargs)

    names = ("self", *_identifiers(graph.inputs))
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    forward.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind) for name in names]
    )
    made: OnnxModule = type("OnnxModule", (OnnxModule,), {"forward": forward})(graph, tensors)
    return made


def _identifiers(names: tuple[str, ...]) -> tuple[str, ...]:
    """Names of inputs as parameters of a function may be called."""
    found: list[str] = []
    for name in names:
        shown = re.sub(r"\W", "_", name)
        shown = (
            shown
            if shown.isidentifier() and not keyword.iskeyword(shown) and shown != "self"
            else f"input_{shown}"
        )
        while shown in found:
            shown += "_"
        found.append(shown)
    return tuple(found)


def _bind(
    names: tuple[str, ...],
    parameters: tuple[str, ...],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    if len(args) > len(names):
        raise Error(f"onnx: the model has {len(names)} inputs, found {len(args)}")
    bound = dict(zip(names, args, strict=False))
    for name, value in kwargs.items():
        if name not in names and name in parameters:
            name = names[parameters.index(name)]
        if name not in names:
            raise Error(f"onnx: the model has no input {name!r}; its inputs are {', '.join(names)}")
        bound[name] = value
    missing = [name for name in names if name not in bound]
    if missing:
        raise Error(f"onnx: no value for the inputs {', '.join(missing)}")
    return bound
