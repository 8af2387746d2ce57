"""What a handler of an op reads of the graph that is imported, and what it builds.

Handlers take a `Context` and a node and return the node's value. They know nothing of the walk over the graph
(`fx_graph.py`), which makes the context and calls them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from mlcc.ir.op_table import OpTable
from mlcc.ir.sizes import Size, SizePrinter
from mlcc.ir.types import (
    DTYPES,
    FLOATS,
    FOREIGN_DTYPES,
    LIMITS,
    GraphUnsupported,
    Object,
    Tensor,
    TensorType,
    Unsupported,
    device_of,
)
from mlcc.logging import get_logger
from mlcc.torch_private import symints


@dataclass(frozen=True)
class Output:
    """One output of the FX graph: what it is and, for a value, its place among the executable's outputs."""

    # "value"; "float": a Python float, a tensor of the executable; "object": the executable returns its number;
    # "constant": what the executable does not return; of regions also "size", which the outer graph's metadata tells
    kind: str
    index: int = 0
    constant: Any = None


@dataclass
class ImportedGraph:
    """What importing found beside the graph itself, which is in the builder."""

    outputs: list[Output] = field(default_factory=list)
    # Tensors that stand in the FX graph; they follow the caller's inputs when the executable is called.
    constants: list[torch.Tensor] = field(default_factory=list)
    num_inputs: int = 0  # of the FX graph
    # Places of inputs that are Python floats; the executable takes them as 0-d f64 tensors.
    float_inputs: list[int] = field(default_factory=list)
    # Places of inputs that are objects; the executable takes their numbers.
    object_inputs: list[int] = field(default_factory=list)
    computes_objects: bool = False
    # Nodes that do arithmetic or move data (no placeholders, outputs, pure views, getitems), by op; externs among them.
    nodes: dict[str, int] = field(default_factory=dict)
    externs: dict[str, int] = field(default_factory=dict)
    # What `fallback` tells of externs, also where the graph comes from torch's cache: op, what it is, and why.
    told: tuple[tuple[str, str, str], ...] = ()
    gpu: str = ""  # the device beside the CPU, "cuda:0"
    symbols: dict[str, symints.SymbolFacts] = field(default_factory=dict)  # of sizes, by our name
    # What runs in Python, which the graph names only: it lives as long as this.
    eager_calls: list[Any] = field(default_factory=list)


logged_externs: set[tuple[str, str]] = set()


def log_externs(told: Iterable[tuple[str, str, str]]) -> None:
    """Log what runs through ATen (`ImportedGraph.told`), each once for a process."""
    for name, what, reason in told:
        if (name, reason) not in logged_externs:
            logged_externs.add((name, reason))
            get_logger("fallback").info("%s: %s (%s)", name, what, reason)


@dataclass
class Region:
    """What the importer of a region needs to know of the place where it hangs."""

    num_carried: int = 0  # outputs that are the inputs of the next round
    fixed: frozenset[int] | None = None  # inputs that are the same in every round of a loop
    num_computed: int = 0  # the first inputs, whose sizes come as tensors: each round has its own
    exported: frozenset[int] = frozenset()  # outputs that are sizes which only running tells
    sizes: list[symints.SymbolFacts] = field(default_factory=list)
    # Constant tensors as (whose attribute, its name, the tensor).
    constants: list[tuple[GraphModule, str, torch.Tensor]] = field(default_factory=list)

    def computes(self, place: int, value: Any) -> bool:
        """Whether the input at `place` is a size that comes as a tensor."""
        return place < self.num_computed and isinstance(value, torch.SymInt)

    def exports(self, place: int, value: Any) -> bool:
        """Whether the output at `place` is a size, or the truth of a relation, that leaves as a tensor."""
        if isinstance(value, bool | torch.SymBool):
            return True
        return place in self.exported and isinstance(value, int | torch.SymInt)


class Context(ABC):
    """A graph under construction, as handlers see it."""

    def __init__(self, gm: GraphModule, builder: Any, table: OpTable) -> None:
        self.module = gm
        self.builder = builder
        self.table = table
        self.imported = ImportedGraph()
        self.sizes = SizePrinter(self._declare_symbol)
        # What the regions of a higher-order op get for their operands; None for a size.
        self.input_types: list[TensorType | None] = []
        self.may_call = True  # ATen where it is faster: packages have none
        self.numbers: dict[str, Tensor] = {}  # floats of the trace, by torch's name of the symbol
        self._env: dict[Node, Any] = {}
        self._bound_symbols: set[str] = set()
        self._used_symbols: dict[str, str] = {}  # name -> torch's name

    def _declare_symbol(self, name: str, facts: symints.SymbolFacts) -> None:
        if facts.hint is not None and not -(2**63) <= facts.hint < 2**63:
            raise GraphUnsupported(f"{facts.name} is {facts.hint}, which has more than 64 bits")
        low = _UNBOUNDED if facts.low is None else max(facts.low, _UNBOUNDED)
        high = None if facts.high is None or facts.high >= 2**63 else facts.high
        self.builder.add_symbol(name, low, high, facts.hint)
        self._used_symbols[name] = facts.name
        self.imported.symbols[name] = facts

    def bind_sizes(self, sizes: Iterable[Size]) -> None:
        """Those among the sizes that are symbols have a value from here on."""
        self._bound_symbols.update(
            size for size in sizes if isinstance(size, str) and size.isidentifier()
        )

    # -- what the walk over the graph does for handlers

    @abstractmethod
    def symbolic_float(self, value: Any) -> Tensor:
        """A SymFloat as a 0-d f64 tensor; Unsupported where its expression has no counterpart."""

    @abstractmethod
    def next_seed(self, device: str) -> Tensor:
        """The seed of one more draw of random numbers on the device, a 0-d i64 tensor."""

    @abstractmethod
    def read_size(self, tensor: Tensor, size: Any) -> None:
        """Make the number in an i64 tensor without dimensions the value of the SymInt `size`, a new symbol."""

    @abstractmethod
    def read_object(self, number: Tensor) -> Object:
        """The object whose number is in an i64 tensor without dimensions."""

    @abstractmethod
    def constant_input(self, node: Node, value: torch.Tensor) -> Tensor:
        """An input for a tensor that stands in the FX graph."""

    @abstractmethod
    def graph_of(self, node: Node) -> Any:
        """The graph that a get_attr node stands for; None for other nodes."""

    @abstractmethod
    def nested(self, gm: GraphModule, region: Region) -> Context:
        """The context of a region of a higher-order op, when its graph is imported."""

    # -- what handlers read

    def bind(self, node: Node) -> dict[str, Any]:
        """The node's arguments by the names of its op's schema, defaults filled in."""
        schema = node.target._schema
        bound = dict(node.kwargs)
        for argument, value in zip(schema.arguments, node.args, strict=False):
            bound[argument.name] = value
        for argument in schema.arguments:
            if argument.name not in bound:
                bound[argument.name] = argument.default_value
        return bound

    def fake(self, argument: Any) -> Any:
        """The fake tensor or symbolic number that a node stands for; anything else as it is."""
        return argument.meta.get("val") if isinstance(argument, Node) else argument

    def tensor(self, argument: Any) -> Tensor:
        """The value of a node; Unsupported if it is no tensor."""
        value = self._env.get(argument) if isinstance(argument, Node) else None
        if not isinstance(value, Tensor):
            raise Unsupported(f"argument {argument} is no tensor")
        return value

    def size(self, argument: Any) -> Size:
        """A size argument: an int, or a node that is a SymInt."""
        value = self.fake(argument)
        if not isinstance(value, int | torch.SymInt):
            raise Unsupported(f"argument {argument} is no size")
        return self.sizes.size(value)

    def shape(self, fake: torch.Tensor) -> list[Size]:
        """A fake tensor's shape."""
        return self.sizes.sizes(fake.shape)

    def tensor_type(self, node: Node, value: torch.Tensor) -> TensorType:
        """What the graph IR says of a fake tensor."""
        return self._tensor_type(node.name, value)

    def _tensor_type(self, name: str, value: torch.Tensor) -> TensorType:
        if value.layout != torch.strided:
            raise GraphUnsupported(f"{name}: layout {value.layout}")
        if value.dtype not in DTYPES:
            raise GraphUnsupported(f"{name}: dtype {value.dtype}")
        try:
            device = device_of(value)
        except GraphUnsupported as reason:
            raise GraphUnsupported(f"{name}: {reason}") from None
        if device != "cpu":
            self.imported.gpu = self.imported.gpu or device
            if device != self.imported.gpu:
                raise GraphUnsupported(f"{name}: devices {self.imported.gpu} and {device}")
        shape = self.sizes.sizes(value.shape)
        strides = None if is_row_major(value) else self.sizes.sizes(value.stride())
        return TensorType(DTYPES[value.dtype], shape, strides, device)

    def lookup(self, node: Node) -> Any:
        """What the environment holds for a node: a Tensor, a list of them, or None for sizes."""
        return self._env.get(node)

    # -- what handlers build

    def cast(self, tensor: Tensor, dtype: str) -> Tensor:
        """The value rounded to `dtype`; itself if it has that dtype."""
        if tensor.dtype == dtype:
            return tensor
        return Tensor(self.builder.cast(tensor.handle, dtype), dtype)

    def pointwise(self, op: str, *operands: Tensor, dtype: str | None = None) -> Tensor:
        """One pointwise op over operands of one dtype; `dtype` is the result's where it is another."""
        handle = self.builder.pointwise(op, [x.handle for x in self.fitted(operands)])
        return Tensor(handle, dtype or operands[-1].dtype)

    def cat(self, operands: Sequence[Tensor], dim: int) -> Tensor:
        """Operands of one dtype one after the other along `dim` (counted from the front)."""
        if len(operands) == 1:
            return operands[0]
        handle = self.builder.cat([x.handle for x in self.fitted(operands, dim)], dim)
        return Tensor(handle, operands[0].dtype)

    def fitted(self, operands: Sequence[Tensor], apart: int | None = None) -> Sequence[Tensor]:
        """The operands with one text for each size that they share, but for that of dimension `apart`.

        By a guard of the trace two sizes may be the same although their expressions are not. Without `apart` operands
        are broadcast: a size of 1 may stand beside any other.
        """
        if not self._used_symbols or len(operands) < 2:
            return operands
        shapes: list[list[Size]] = [x.handle.shape for x in operands]
        rank = max(map(len, shapes))
        wanted = [
            _common_size([shape[d] for shape in shapes if len(shape) >= -d], apart is None)
            for d in range(-rank, 0)
        ]
        fitted = []
        for x, shape in zip(operands, shapes, strict=True):
            for d, size in enumerate(shape):
                same = wanted[rank - len(shape) + d]
                if size not in (1, same) and d != apart:
                    x = self.slice(x, d, 0, same)  # an index map that keeps every index
            fitted.append(x)
        return fitted

    def copy(self, tensor: Tensor) -> Tensor:
        """A fresh tensor of the same elements."""
        return self.pointwise("copy", tensor)

    def reshape(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        """The same elements in row-major order."""
        return Tensor(self.builder.reshape(tensor.handle, list(shape)), tensor.dtype)

    def expand(self, tensor: Tensor, shape: Sequence[Size]) -> Tensor:
        """Broadcasts as NumPy does, to exactly `shape`."""
        return Tensor(self.builder.expand(tensor.handle, list(shape)), tensor.dtype)

    def broadcast(self, tensor: Tensor, shape: list[Size], wanted: list[Size]) -> Tensor:
        """A tensor of shape `shape` expanded to `wanted`; sizes may be the same by a guard of the trace only."""
        while len(shape) > len(wanted) and shape[0] == 1:
            shape = shape[1:]
            tensor = self.reshape(tensor, shape)
        for d, (size, same) in enumerate(zip(reversed(shape), reversed(wanted), strict=False)):
            if size not in (1, same):
                tensor = self.slice(tensor, len(shape) - 1 - d, 0, same)
        return tensor if shape == wanted else self.expand(tensor, wanted)

    def slice(self, tensor: Tensor, dim: int, start: Size, length: Size, step: int = 1) -> Tensor:
        """`length` elements along `dim` (counted from the front) from `start` on."""
        return Tensor(self.builder.slice(tensor.handle, dim, start, length, step), tensor.dtype)

    def reduce(self, op: str, tensor: Tensor, dims: Sequence[int], keepdim: bool) -> Tensor:
        """sum, prod, max, min in the operand's dtype; any, all of bool; argmax, argmin to i64 over one dim.

        Without dims a fresh tensor of the same elements.
        """
        if not dims:
            return self.copy(tensor)
        dtype = "i64" if op in ("argmax", "argmin") else tensor.dtype
        return Tensor(self.builder.reduce(op, tensor.handle, list(dims), keepdim), dtype)

    def full(self, shape: Sequence[Size], dtype: str, number: float, device: str = "cpu") -> Any:
        """Handle of a constant tensor; the number is converted as C does."""
        if dtype in FLOATS:
            return self.builder.full(list(shape), dtype, float(number), device)
        return self.builder.full_int(list(shape), dtype, wrap_integer(number, dtype), device)

    def number(self, value: Any, dtype: str, device: str = "cpu") -> Tensor:
        """A Python number, SymInt or SymFloat (or the node of one) as a 0-d constant of `dtype`.

        A number of the CPU may stand beside tensors of any device. A SymFloat is there whatever `device` says.
        """
        value = self.fake(value)
        if isinstance(value, torch.SymInt):
            handle = self.builder.size_value(self.sizes.size(value), device)
            return self.cast(Tensor(handle, "i64"), dtype)
        if isinstance(value, torch.SymFloat):
            return self.cast(self.symbolic_float(value), dtype)
        if not isinstance(value, bool | int | float):
            raise Unsupported(f"{value!r} is no number")
        return Tensor(self.full([], dtype, value, device), dtype)

    def restrided(self, tensor: Tensor, found: TensorType, expected: TensorType) -> Tensor:
        """The same elements in the strides of `expected`."""
        if found.strides == expected.strides:
            return tensor
        if tensor.dtype in FOREIGN_DTYPES.values():
            raise GraphUnsupported(f"{tensor.dtype} in other strides than its region expects")
        copy = self.copy(tensor)
        strides = expected.strides
        self.builder.set_strides(copy.handle, [] if strides is None else strides)
        return copy


_UNBOUNDED = -(2**63)


def wrap_integer(number: float, dtype: str) -> int:
    """A number as an integer of `dtype` in two's complement, as a C cast gives it; Unsupported if it has a fraction."""
    if dtype == "bool":
        return int(bool(number))
    if int(number) != number:
        raise Unsupported(f"{number} as {dtype}")
    low, high = LIMITS[dtype]
    return (int(number) - low) % (high - low + 1) + low


def _common_size(sizes: Sequence[Size], broadcasts: bool) -> Size:
    """One text for sizes that are the same, a number if one of them is; a 1 may broadcast to the others."""
    counted = [size for size in sizes if size != 1] if broadcasts else sizes
    numbers = [size for size in counted if isinstance(size, int)]
    return next(iter(numbers or counted), 1)


def is_row_major(value: torch.Tensor) -> bool:
    """Whether the strides are exactly torch's for a contiguous tensor of that shape; adds no guard."""
    expected: Any = 1
    for size, stride in zip(reversed(value.shape), reversed(value.stride()), strict=True):
        if not _same_size(stride, expected):
            return False
        # torch counts a size of 0 as 1 in the strides before it
        if not (isinstance(size, int) and size == 0):
            expected = expected * size
    return True


def _same_size(a: Any, b: Any) -> bool:
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(_plain(a) == _plain(b))


def _plain(size: Any) -> Any:
    return symints.sym_expr(size) if isinstance(size, torch.SymInt) else size
