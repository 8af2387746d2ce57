"""Packages and models of ONNX, opened by their files, for the command line: what they take, and calls over arrays."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy

from mlcc import runtime
from mlcc._errors import Error

_MAGIC = b"MLCCPKG\n"
_FUNCTIONS = {
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


@dataclass(frozen=True)
class Input:
    """What a model takes: `dtype` as mlcc names it, sizes as texts ("3", "batch", "2*length")."""

    name: str
    dtype: str
    sizes: tuple[str, ...]


@dataclass(frozen=True)
class Range:
    """Of a size that varies. `usual`: what is taken where nobody says."""

    low: int
    high: int | None
    usual: int

    def __str__(self) -> str:
        return f"{self.low} or more" if self.high is None else f"{self.low} to {self.high}"


class OpenedModel(Protocol):
    """A file that can be called."""

    inputs: tuple[Input, ...]
    outputs: tuple[str, ...]
    ranges: dict[str, Range]

    def call(self, arrays: Sequence[Any]) -> list[Any]:
        """Results for inputs in their order."""


def is_package(path: str | Path) -> bool:
    """Whether the file begins as packages do; False where there is none."""
    try:
        with open(path, "rb") as file:
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False


def open_model(path: str | Path, threads: int) -> OpenedModel:
    """Error where the file is neither a package nor a model of ONNX."""
    if not Path(path).is_file():
        raise Error(f"{path}: no such file")
    return OnnxFile(path, threads) if str(path).endswith(".onnx") else PackageFile(path, threads)


class PackageFile:
    """Runs by the C library."""

    def __init__(self, path: str | Path, threads: int) -> None:
        try:
            self._model = runtime.load(path, threads=threads)
        except runtime.PackageError as error:
            raise Error(str(error)) from None
        self.manifest = self._model.manifest
        self.inputs = tuple(
            Input(info.name, info.dtype, info.size_texts) for info in self._model.inputs
        )
        self.infos = (self._model.inputs, self._model.outputs)
        self.outputs = tuple(info.name for info in self._model.outputs)
        self.ranges = {
            name: Range(ends["min"], ends["max"], ends.get("usual", max(ends["min"], 1)))
            for name, ends in self.manifest["sizes"].items()
        }

    def call(self, arrays: Sequence[Any]) -> list[Any]:
        """Error where they do not fit."""
        try:
            return self._model.run(arrays)
        except (runtime.PackageError, TypeError) as error:
            raise Error(str(error)) from None


class OnnxFile:
    """Runs by `mlcc.jit`."""

    def __init__(self, path: str | Path, threads: int) -> None:
        import torch

        import mlcc.onnx
        from mlcc.capture.jit import jit
        from mlcc.ir.types import DTYPES
        from mlcc.onnx import dtypes
        from mlcc.onnx.reading import read_model

        torch.set_num_threads(threads)
        self.module = mlcc.onnx.load(path)
        self._jitted = jit(self.module)
        self.proto, _ = read_model(path)
        taken = {value.name: value.type.tensor_type for value in self.proto.graph.input}
        self.inputs = tuple(
            Input(
                name,
                DTYPES.get(dtypes.DTYPES.get(taken[name].elem_type), "?"),
                _size_texts(name, taken[name].shape.dim),
            )
            for name in self.module.input_names
        )
        self.outputs = self.module.output_names
        names = [size for one in self.inputs for size in one.sizes if not size.isdigit()]
        self.ranges = {name: Range(0, None, 1) for name in names}

    def call(self, arrays: Sequence[Any]) -> list[Any]:
        """Error where the model raises."""
        return self.caller(arrays)()

    def caller(self, arrays: Sequence[Any]) -> Callable[[], list[Any]]:
        """The call with these arrays as tensors."""
        import torch

        from mlcc.onnx.dtypes import to_numpy

        given = self.as_tensors(self.inputs, arrays)

        def call() -> list[Any]:
            try:
                with torch.no_grad():
                    results = self._jitted(*given)
            except (RuntimeError, ValueError, TypeError, IndexError) as error:
                raise Error(f"the model raises: {error}") from error
            return [
                to_numpy(result, code) if isinstance(result, torch.Tensor) else result
                for result, code in zip(
                    results if isinstance(results, tuple) else (results,),
                    self.module.output_types,
                    strict=False,
                )
            ]

        return call

    @staticmethod
    def as_tensors(inputs: Sequence[Input], arrays: Sequence[Any]) -> list[Any]:
        """bf16 comes as u16, as packages have it."""
        import torch

        from mlcc.onnx.dtypes import from_numpy

        return [
            from_numpy(array).view(torch.bfloat16) if one.dtype == "bf16" else from_numpy(array)
            for one, array in zip(inputs, arrays, strict=True)
        ]


def _size_texts(name: str, dims: Any) -> tuple[str, ...]:
    """Of an input of ONNX: dims that have neither a size nor a name are called after the input."""
    return tuple(
        str(dim.dim_value)
        if dim.HasField("dim_value")
        else re.sub(r"\W", "_", dim.dim_param or f"{name}_{number}")
        for number, dim in enumerate(dims)
    )


def sizes_of(model: OpenedModel, told: Mapping[str, int]) -> dict[str, int]:
    """A value for each size that varies; Error where one is told that the model has not, or that is out of range."""
    for name, size in told.items():
        found = model.ranges.get(name)
        if found is None:
            names = ", ".join(model.ranges) or "none"
            raise Error(f"size {name}: the model has no such size; those that vary: {names}")
        if size < found.low or (found.high is not None and size > found.high):
            raise Error(f"size {name}: found {size}, expected {found}")
    return {name: told.get(name, found.usual) for name, found in model.ranges.items()}


def made_up(inputs: Sequence[Input], sizes: Mapping[str, int], seed: int) -> list[Any]:
    """Arrays of these sizes. Floats are of the normal distribution, integers 0 or 1, so that they are indices too."""
    generator = numpy.random.default_rng(seed)
    return [_array(one, [size_at(text, sizes) for text in one.sizes], generator) for one in inputs]


def size_at(text: str, sizes: Mapping[str, int]) -> int:
    """The value of a size's text."""
    if text.isdigit():
        return int(text)
    if text in sizes:
        return sizes[text]
    value = eval(text, {"__builtins__": {}}, {**_FUNCTIONS, **sizes})
    return int(value)


def _array(one: Input, shape: Sequence[int], generator: numpy.random.Generator) -> Any:
    dtypes = dict(runtime.tensors.DTYPES)
    if one.dtype not in dtypes:
        raise Error(f"input {one.name}: values of its dtype cannot be made up; give --inputs")
    if one.dtype in ("f16", "f32", "f64"):
        return generator.standard_normal(shape).astype(dtypes[one.dtype])
    if one.dtype == "bf16":
        bits = generator.standard_normal(shape).astype(numpy.float32).view(numpy.uint32)
        return (bits >> 16).astype(numpy.uint16)
    return generator.integers(0, 2, shape).astype(dtypes[one.dtype])


def read_arrays(model: OpenedModel, path: str) -> list[Any]:
    """Inputs of an .npz file, by their names or by their numbers; Error where one is missing."""
    try:
        with numpy.load(path, allow_pickle=False) as file:
            arrays = dict(file)
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise Error(f"{path}: no .npz file of arrays: {error}") from None
    found = []
    for number, one in enumerate(model.inputs):
        name = one.name if one.name in arrays else str(number)
        if name not in arrays:
            raise Error(f"{path}: no array {one.name!r}; found {', '.join(arrays) or 'none'}")
        found.append(arrays[name])
    return found


def in_words(name: str, result: Any) -> str:
    """dtype, shape and range of an array; of what is none, its kind."""
    if not isinstance(result, numpy.ndarray):
        return f"{name}: {type(result).__name__}"
    shape = ", ".join(map(str, result.shape))
    told = f"{name}: {result.dtype} [{shape}]"
    if result.size == 0 or result.dtype.kind not in "fiub":
        return told
    if result.dtype.kind != "f":
        return f"{told} from {result.min()} to {result.max()}"
    finite = result[numpy.isfinite(result)].astype(numpy.float64)
    if finite.size:
        told += f" from {finite.min():.6g} to {finite.max():.6g}, mean {math.fsum(finite.flat) / finite.size:.6g}"
    strange = result.size - finite.size
    return f"{told}, {strange} not finite" if strange else told
