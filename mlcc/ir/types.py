"""What the parts of the importer share: dtypes, values under construction, and the two ways of saying no."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from mlcc.ir.sizes import Size

# What no kernel computes: values of these dtypes are inputs, outputs, and operands and results of externs.
FOREIGN_DTYPES: dict[torch.dtype, str] = {
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
    torch.float8_e4m3fn: "f8e4m3",
    torch.float8_e4m3fnuz: "f8e4m3fnuz",
    torch.float8_e5m2: "f8e5m2",
    torch.float8_e5m2fnuz: "f8e5m2fnuz",
    torch.float8_e8m0fnu: "f8e8m0",
    torch.complex32: "c32",
    torch.complex64: "c64",
    torch.complex128: "c128",
}

DTYPES: dict[torch.dtype, str] = {
    torch.bool: "bool",
    torch.uint8: "u8",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.float16: "f16",
    torch.bfloat16: "bf16",
    torch.float32: "f32",
    torch.float64: "f64",
    **FOREIGN_DTYPES,
}


FLOATS = frozenset({"f16", "bf16", "f32", "f64"})

# The dtype that eager's kernels compute 16-bit floats in.
OPMATH = {"f16": "f32", "bf16": "f32"}

# The least and greatest number of each integer dtype.
LIMITS = {"u8": (0, 255)} | {
    f"i{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)
}

# (importer, node) -> Tensor, or a list of them.
Handler = Callable[[Any, Node], Any]


class Unsupported(Exception):  # noqa: N818 (an expected answer)
    """A node that must run as an ATen call; the text says why."""


class GraphUnsupported(Exception):  # noqa: N818 (an expected answer)
    """A graph that must run eagerly; the text says why."""

    traces: str = ""  # torch's stack trace of the node at fault, or ''


class TensorType(NamedTuple):
    """What a value of the graph is, in the order in which the builder takes it."""

    dtype: str
    shape: list[Size]
    strides: list[Size] | None  # None where row-major
    device: str  # "cpu", "cuda:0"


# A size that is computed while a graph runs, as calls and loops hand it on.
SIZE_TENSOR = TensorType("i64", [], None, "cpu")


def device_of(fake: torch.Tensor) -> str:
    """Where a fake tensor lies, as the graph IR says it; GraphUnsupported for devices that it does not know."""
    device = fake.device
    if device.type == "cpu":
        return "cpu"
    if device.type != "cuda":
        raise GraphUnsupported(f"device {device}")
    return f"cuda:{device.index or 0}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph under construction: the builder's handle and its dtype ("f32")."""

    handle: Any
    dtype: str


@dataclass(frozen=True, slots=True)
class Object:
    """A value that is neither a tensor nor a number: the size that holds its number (`ir/objects.py`)."""

    size: str


def leaves(value: Any) -> list[Any]:
    """What nested lists and tuples hold, in order; anything else as the only leaf."""
    if isinstance(value, list | tuple):
        return [leaf for item in value for leaf in leaves(item)]
    return [value]


def overflows(number: Any, dtype: torch.dtype) -> bool:
    """Whether eager finds that a plain number does not fit: a finite one beyond the largest, or NaN as an integer."""
    if type(number) not in (int, float) or dtype == torch.bool or dtype.is_complex:
        return False
    if dtype.is_floating_point:
        return not math.isinf(number) and abs(number) > torch.finfo(dtype).max
    limits = torch.iinfo(dtype)
    lowest = limits.min if dtype.is_signed else -limits.max
    return not lowest <= number <= limits.max


def source_line(node: Node) -> str:
    """Where the user wrote what became this node ("model.py:31"), or ''."""
    trace = node.meta.get("stack_trace")
    if not trace:
        return ""
    places = re.findall(r'File "([^"]*)", line (\d+)', trace)
    if not places:
        return ""
    filename, line = places[-1]
    return f"{filename.rsplit('/', 1)[-1]}:{line}"
