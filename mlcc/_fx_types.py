"""What the parts of the importer share: dtypes, values under construction, and the two ways of saying no."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import Node

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
}


# The dtype that eager's kernels compute 16-bit floats in.
OPMATH = {"f16": "f32", "bf16": "f32"}

# (importer, node) -> Tensor, or a list of them.
Handler = Callable[[Any, Node], Any]


class Unsupported(Exception):  # noqa: N818 (an expected answer)
    """A node that must run as an ATen call; the text says why."""


class GraphUnsupported(Exception):  # noqa: N818 (an expected answer)
    """A graph that must run eagerly; the text says why."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value of the graph under construction: the builder's handle and its dtype ("f32")."""

    handle: Any
    dtype: str


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
