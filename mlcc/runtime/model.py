"""A package as a Python callable."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .library import (
    CHECK_WEIGHTS,
    COPY_WEIGHTS,
    ContextOptionsStruct,
    ErrorStruct,
    PackageError,
    TensorInfoStruct,
    TensorStruct,
    WeightStruct,
    check,
    library,
)
from .tensors import DTYPES, Arrays, NumpyArrays, TensorInfo, tensor_struct
from .trees import flatten, unflatten


class _Handle:
    """Something of the library's, closed with the last reference."""

    def __init__(self, pointer: ctypes.c_void_p, close: Any) -> None:
        self.pointer = pointer
        self._close = close

    def __del__(self) -> None:
        self._close(self.pointer)


class Model:
    """A package that is open. Calls take and return what the exported model's did, with arrays for tensors.

    Any number of threads may call it at a time.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        threads: int = 1,
        copy_weights: bool = False,
        check_weights: bool = False,
        arrays: Arrays | None = None,
    ) -> None:
        self._threads = threads
        self._arrays = arrays if arrays is not None else NumpyArrays()
        flags = copy_weights * COPY_WEIGHTS | check_weights * CHECK_WEIGHTS
        pointer, error = ctypes.c_void_p(), ErrorStruct()
        check(
            library().mlcc_package_open(
                os.fsencode(path), flags, ctypes.byref(pointer), ctypes.byref(error)
            ),
            error,
        )
        self._package = _Handle(pointer, library().mlcc_package_close)
        self.inputs = self._ports(library().mlcc_package_num_inputs, library().mlcc_package_input)
        self.outputs = self._ports(
            library().mlcc_package_num_outputs, library().mlcc_package_output
        )
        self._idle: list[_Handle] = []  # contexts that no call uses

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What the package says of itself."""
        size = ctypes.c_size_t()
        text = library().mlcc_package_manifest(self._package.pointer, ctypes.byref(size))
        found: dict[str, Any] = json.loads(ctypes.string_at(text, size.value))
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the exported model: arguments in the same places, results in the same containers."""
        given = flatten(self.manifest["input_tree"], [list(args), kwargs])
        return unflatten(self.manifest["output_tree"], self.run(given))

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """All inputs in the order of `self.inputs`; a new array for each of `self.outputs`."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"found {len(inputs)} inputs, expected {len(self.inputs)}")
        given = [
            self._arrays.given(info, value) for info, value in zip(self.inputs, inputs, strict=True)
        ]
        taken, given_structs = self._structs(self.inputs, given)
        try:
            context = self._idle.pop()
        except IndexError:
            context = self._new_context()
        try:
            results = self._run(context, taken, len(given))
        finally:
            self._idle.append(context)
        del given_structs  # they hold the sizes that the library has read
        return results

    def arena_bytes(self, inputs: Sequence[Any]) -> int:
        """Memory that a call with these inputs takes beside its results."""
        given = [
            self._arrays.given(info, value) for info, value in zip(self.inputs, inputs, strict=True)
        ]
        taken, structs = self._structs(self.inputs, given)
        found, error = ctypes.c_size_t(), ErrorStruct()
        status = library().mlcc_package_arena_bytes(
            self._package.pointer, taken, len(given), ctypes.byref(found), ctypes.byref(error)
        )
        del structs
        check(status, error)
        return found.value

    @functools.cached_property
    def weights(self) -> tuple[TensorInfo, ...]:
        """What `refit` exchanges; PackageError where the package was exported without that."""
        count, error = ctypes.c_size_t(), ErrorStruct()
        pointer = self._package.pointer
        check(
            library().mlcc_package_num_weights(pointer, ctypes.byref(count), ctypes.byref(error)),
            error,
        )
        found = []
        for index in range(count.value):
            info = TensorInfoStruct()
            status = library().mlcc_package_weight(
                pointer, index, ctypes.byref(info), ctypes.byref(error)
            )
            check(status, error)
            found.append(_tensor_info(info))
        return tuple(found)

    def refit(self, state: Mapping[str, Any]) -> None:
        """Exchange weights for those of a state_dict, all of them or some; the file stays as it is.

        Calls that begin afterwards see all of the new ones, calls under way none of them. PackageError, and nothing is
        changed, where the model has no weight of a name, where dtype or sizes are others, or where one is packed
        together with another that is not given.
        """
        infos = {info.name: info for info in self.weights}
        given, kept = [], []
        for name, value in state.items():
            info = infos.get(name)
            array = value if info is None else self._arrays.given(info, value, "weight")
            struct = TensorStruct() if info is None else tensor_struct(self._arrays, info, array)
            kept.append((array, struct))
            given.append(WeightStruct(name.encode(), struct))
        error = ErrorStruct()
        status = library().mlcc_package_refit(
            self._package.pointer,
            (WeightStruct * len(given))(*given),
            len(given),
            ctypes.byref(error),
        )
        del kept  # the library has read them
        check(status, error)

    def _run(self, context: _Handle, taken: Any, num_inputs: int) -> list[Any]:
        error = ErrorStruct()
        infos: Sequence[TensorInfo] = self.outputs
        if any(info.varies for info in infos):
            infos = self._inferred(context, taken, num_inputs)
        results = [self._arrays.empty(info) for info in infos]
        made, made_structs = self._structs(infos, results)
        status = library().mlcc_run(
            context.pointer, taken, num_inputs, made, len(results), ctypes.byref(error)
        )
        del made_structs
        check(status, error)
        return results

    def _inferred(self, context: _Handle, taken: Any, num_inputs: int) -> list[TensorInfo]:
        """The outputs with their sizes in a call."""
        error = ErrorStruct()
        made = (TensorStruct * len(self.outputs))()
        status = library().mlcc_infer(
            context.pointer, taken, num_inputs, made, len(made), ctypes.byref(error)
        )
        check(status, error)
        return [
            info.at(tuple(one.sizes[: one.rank]), tuple(one.strides[: one.rank]))
            for info, one in zip(self.outputs, made, strict=True)
        ]

    def _structs(self, infos: Sequence[TensorInfo], values: Sequence[Any]) -> tuple[Any, Any]:
        structs = [
            tensor_struct(self._arrays, info, value)
            for info, value in zip(infos, values, strict=True)
        ]
        return (TensorStruct * len(structs))(*structs), structs

    def _new_context(self) -> _Handle:
        pointer, error = ctypes.c_void_p(), ErrorStruct()
        options = ContextOptionsStruct(threads=self._threads)
        status = library().mlcc_context_create(
            self._package.pointer,
            ctypes.byref(options),
            ctypes.byref(pointer),
            ctypes.byref(error),
        )
        check(status, error)
        return _Handle(pointer, library().mlcc_context_destroy)

    def _ports(self, count: Any, describe: Any) -> tuple[TensorInfo, ...]:
        found = []
        for index in range(count(self._package.pointer)):
            info = TensorInfoStruct()
            if describe(self._package.pointer, index, ctypes.byref(info)) != 0:
                raise PackageError(f"the package has no tensor {index}", 0)
            found.append(_tensor_info(info))
        return tuple(found)


def _tensor_info(info: TensorInfoStruct) -> TensorInfo:
    return TensorInfo(
        info.name.decode(),
        DTYPES[info.dtype][0],
        tuple(info.sizes[: info.rank]),
        tuple(info.strides[: info.rank]),
        tuple(text.decode() for text in info.size_texts[: info.rank]),
        info.dtype,
    )


def load(
    path: str | os.PathLike[str],
    *,
    threads: int = 1,
    copy_weights: bool = False,
    check_weights: bool = False,
) -> Model:
    """Opens a package that `mlcc.export` wrote; `PackageError` where it cannot run here.

    `threads` work on each call; they are the package's own, and sleep meanwhile. The file is mapped, and must not
    change while the model is used. `copy_weights` reads its weights into memory of large pages, which may be faster for
    large models; `check_weights` reads them once to compare their checksum.
    """
    return Model(path, threads=threads, copy_weights=copy_weights, check_weights=check_weights)
