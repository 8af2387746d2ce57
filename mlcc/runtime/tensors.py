"""Arrays at the border of the C library: numpy's, and the interface that others implement."""

from __future__ import annotations

import ctypes
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy

from .library import TensorStruct

# By number of mlcc_dtype: the name, and numpy's dtype. numpy has no bf16: its 16 bits come as uint16.
DTYPES = (
    ("bool", numpy.bool_),
    ("u8", numpy.uint8),
    ("i8", numpy.int8),
    ("i16", numpy.int16),
    ("i32", numpy.int32),
    ("i64", numpy.int64),
    ("f16", numpy.float16),
    ("bf16", numpy.uint16),
    ("f32", numpy.float32),
    ("f64", numpy.float64),
)

_MOST_ORDERS = 720  # that are tried: all of six dimensions


@dataclass(frozen=True)
class TensorInfo:
    """An input or output of a package: `dtype` as mlcc names it ("f32"), sizes and strides in elements.

    What varies from call to call is -1; `size_texts` say how ("batch", "2*length").
    """

    name: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    size_texts: tuple[str, ...]
    number: int  # of the dtype, mlcc_dtype

    @property
    def varies(self) -> bool:
        """Whether a size varies."""
        return -1 in self.sizes

    @property
    def overlaps(self) -> bool:
        """Whether elements lie at one place, so that nothing can be copied there."""
        reach = 0
        for stride, size in sorted(zip(self.strides, self.sizes, strict=True)):
            if size > 1 and stride <= reach:
                return True
            reach += (size - 1) * stride
        return False

    def order(self, sizes: Sequence[int]) -> tuple[int, ...]:
        """Dimensions of a tensor of these sizes, the outermost in memory first, as far as known strides tell."""
        usual = tuple(range(len(sizes)))
        if len(sizes) != len(self.strides) or 0 in sizes:
            return usual
        for order in itertools.islice(itertools.permutations(usual), _MOST_ORDERS):
            step = 1
            for dim in reversed(order):
                if sizes[dim] != 1 and self.strides[dim] not in (-1, step):
                    break
                step *= sizes[dim]
            else:
                return order
        return usual

    @functools.cached_property
    def numpy_dtype(self) -> Any:
        """numpy's dtype of the elements."""
        return numpy.dtype(DTYPES[self.number][1])

    @functools.cached_property
    def byte_strides(self) -> tuple[int, ...]:
        """Strides in bytes, as numpy tells them."""
        return tuple(stride * self.numpy_dtype.itemsize for stride in self.strides)

    def at(self, sizes: tuple[int, ...], strides: tuple[int, ...]) -> TensorInfo:
        """The same in one call."""
        return replace(self, sizes=sizes, strides=strides)


class Arrays(Protocol):
    """What makes arrays and tells where they lie."""

    def given(self, info: TensorInfo, value: Any, what: str = "input") -> Any:
        """`value` as an array of the dtype, at strides that the library takes; TypeError where it is none."""

    def place(self, info: TensorInfo, value: Any) -> int:
        """Where `value` begins if it is just what the package takes, of fixed sizes; else 0."""

    def empty(self, info: TensorInfo) -> Any:
        """A new array for an output."""

    def address(self, array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """The first element, sizes, and strides in elements."""


class NumpyArrays:
    """numpy's arrays; what speaks DLPack or the buffer protocol is taken without a copy."""

    def given(self, info: TensorInfo, value: Any, what: str = "input") -> Any:
        """Arrays of other strides than the package takes are copied; those of another dtype are refused."""
        if not isinstance(value, numpy.ndarray):
            value = (
                numpy.from_dlpack(value) if hasattr(value, "__dlpack__") else numpy.asarray(value)
            )
        expected = info.numpy_dtype
        if value.dtype != expected:
            raise TypeError(f"{what} {info.name}: found dtype {value.dtype}, expected {expected}")
        if any(stride % value.itemsize for stride in value.strides):
            value = numpy.ascontiguousarray(value)  # a field of a record
        if info.varies:
            order = info.order(value.shape)
            return numpy.ascontiguousarray(value.transpose(order)).transpose(numpy.argsort(order))
        is_right = value.shape != info.sizes or tuple(_strides(value)) == info.strides
        if is_right or info.overlaps:
            return value  # the library tells what is wrong
        fitting = numpy.lib.stride_tricks.as_strided(
            numpy.empty(_reach(info), expected),
            info.sizes,
            [stride * expected.itemsize for stride in info.strides],
        )
        fitting[...] = value
        return fitting

    def place(self, info: TensorInfo, value: Any) -> int:
        """Looks at what costs least first."""
        if (
            type(value) is numpy.ndarray
            and value.shape == info.sizes
            and value.dtype == info.numpy_dtype
            and value.strides == info.byte_strides
        ):
            return int(value.__array_interface__["data"][0])
        return 0

    def empty(self, info: TensorInfo) -> Any:
        """In row-major order."""
        return numpy.empty(info.sizes, info.numpy_dtype)

    def address(self, array: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
        """As numpy says it, in elements instead of bytes."""
        return array.ctypes.data, array.shape, tuple(_strides(array))


def _strides(array: Any) -> list[int]:
    return [stride // array.itemsize for stride in array.strides]


def _reach(info: TensorInfo) -> int:
    """Elements from the first to behind the last one."""
    if 0 in info.sizes:
        return 0
    return 1 + sum(
        (size - 1) * stride for size, stride in zip(info.sizes, info.strides, strict=True)
    )


def tensor_struct(arrays: Arrays, info: TensorInfo, array: Any) -> TensorStruct:
    """mlcc_tensor of an array, which must outlive it."""
    address, sizes, strides = arrays.address(array)
    numbers = ctypes.c_int64 * len(sizes)
    return TensorStruct(address, info.number, len(sizes), numbers(*sizes), numbers(*strides))
