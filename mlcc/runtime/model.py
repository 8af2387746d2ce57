"""A package as a Python callable."""

from __future__ import annotations

import ctypes
import functools
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from .calls import Call, Handle
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
        self._package = Handle(pointer, library().mlcc_package_close)
        self.inputs = self._ports(library().mlcc_package_num_inputs, library().mlcc_package_input)
        self.outputs = self._ports(
            library().mlcc_package_num_outputs, library().mlcc_package_output
        )
        self._idle: list[Call] = []  # contexts that no call uses

    @functools.cached_property
    def manifest(self) -> dict[str, Any]:
        """What the package says of itself."""
        size = ctypes.c_size_t()
        text = library().mlcc_package_manifest(self._package.pointer, ctypes.byref(size))
        found: dict[str, Any] = json.loads(ctypes.string_at(text, size.value))
        return found

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the exported model: arguments in the same places, results in the same containers."""
        if not (self._takes_plain and not kwargs and len(args) == len(self.inputs)):
            args = tuple(flatten(self.manifest["input_tree"], [list(args), kwargs]))
        results = self.run(args)
        return results[0] if self._gives_plain else unflatten(self._output_tree, results)

    @functools.cached_property
    def _takes_plain(self) -> bool:
        """Whether arguments are just the inputs, in their order."""
        leaves = [{"tensor": i} for i in range(len(self.inputs))]
        return bool(self.manifest["input_tree"] == {"list": [{"list": leaves}, {"dict": {}}]})

    @functools.cached_property
    def _output_tree(self) -> dict[str, Any]:
        tree: dict[str, Any] = self.manifest["output_tree"]
        return tree

    @functools.cached_property
    def _gives_plain(self) -> bool:
        return self._output_tree == {"tensor": 0}

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """All inputs in the order of `self.inputs`; a new array for each of `self.outputs`."""
        if len(inputs) != len(self.inputs):
            raise TypeError(f"found {len(inputs)} inputs, expected {len(self.inputs)}")
        try:
            call = self._idle.pop()
        except IndexError:
            call = self._new_call()
        try:
            return call.run(inputs)
        finally:
            self._idle.append(call)

    def arena_bytes(self, inputs: Sequence[Any]) -> int:
        """Memory that a call with these inputs takes beside its results."""
        given = [
            self._arrays.given(info, value) for info, value in zip(self.inputs, inputs, strict=True)
        ]
        structs = [
            tensor_struct(self._arrays, info, array)
            for info, array in zip(self.inputs, given, strict=True)
        ]
        taken = (TensorStruct * len(structs))(*structs)
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
            if not isinstance(name, str) or "\0" in name:
                raise TypeError(f"weight {name!r}: expected the name of a weight")
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

    def _new_call(self) -> Call:
        pointer, error = ctypes.c_void_p(), ErrorStruct()
        options = ContextOptionsStruct(threads=self._threads)
        status = library().mlcc_context_create(
            self._package.pointer,
            ctypes.byref(options),
            ctypes.byref(pointer),
            ctypes.byref(error),
        )
        check(status, error)
        context = Handle(pointer, library().mlcc_context_destroy)
        return Call(context, self._arrays, self.inputs, self.outputs)

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
