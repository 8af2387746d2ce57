"""One call of a package at a time: a context of the library, with the structs that it reads."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from .library import ErrorStruct, TensorStruct, check, library
from .tensors import Arrays, TensorInfo, tensor_struct


class Handle:
    """Something of the library's, closed with the last reference."""

    def __init__(self, pointer: ctypes.c_void_p, close: Callable[[ctypes.c_void_p], None]) -> None:
        self.pointer = pointer
        self._close = close

    def __del__(self) -> None:
        self._close(self.pointer)


class Structs:
    """mlcc_tensor of arrays that change from call to call, while sizes and strides mostly stay."""

    def __init__(self, arrays: Arrays, infos: Sequence[TensorInfo]) -> None:
        self.structs = (TensorStruct * len(infos))()
        self._arrays = arrays
        self._usual = [None if info.varies else _described(info) for info in infos]
        self._is_usual = [False] * len(infos)

    def take(self, index: int, info: TensorInfo, value: Any) -> bool:
        """Points at `value` if it is an array of the usual sizes and strides."""
        usual = self._usual[index]
        address = 0 if usual is None else self._arrays.place(info, value)
        if usual is None or address == 0:
            return False
        if not self._is_usual[index]:
            self.structs[index] = usual
            self._is_usual[index] = True
        self.structs[index].data = address
        return True

    def describe(self, index: int, info: TensorInfo, array: Any) -> TensorStruct:
        """Points at any array; what is returned holds its sizes and strides and must outlive the call."""
        struct = tensor_struct(self._arrays, info, array)
        self.structs[index] = struct
        self._is_usual[index] = False
        return struct


def _described(info: TensorInfo) -> TensorStruct:
    numbers = ctypes.c_int64 * len(info.sizes)
    return TensorStruct(
        None, info.number, len(info.sizes), numbers(*info.sizes), numbers(*info.strides)
    )


class Call:
    """A context, which one thread uses at a time."""

    def __init__(
        self,
        context: Handle,
        arrays: Arrays,
        inputs: Sequence[TensorInfo],
        outputs: Sequence[TensorInfo],
    ) -> None:
        self._context = context
        self._arrays = arrays
        self._input_infos, self._output_infos = inputs, outputs
        self._varies = any(info.varies for info in outputs)
        self._inputs, self._outputs = Structs(arrays, inputs), Structs(arrays, outputs)
        self._error = ErrorStruct()

    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """A new array for each output."""
        held = []  # what the library reads
        for index, info in enumerate(self._input_infos):
            if not self._inputs.take(index, info, inputs[index]):
                array = self._arrays.given(info, inputs[index])
                held.append((array, self._inputs.describe(index, info, array)))
        infos = self._inferred() if self._varies else self._output_infos
        results = [self._arrays.empty(info) for info in infos]
        for index, (info, array) in enumerate(zip(infos, results, strict=True)):
            if not self._outputs.take(index, info, array):
                held.append((array, self._outputs.describe(index, info, array)))
        status = library().mlcc_run(
            self._context.pointer,
            self._inputs.structs,
            len(self._input_infos),
            self._outputs.structs,
            len(results),
            self._error,
        )
        del held
        check(status, self._error)
        return results

    def _inferred(self) -> list[TensorInfo]:
        """The outputs with their sizes in this call."""
        made = (TensorStruct * len(self._output_infos))()
        status = library().mlcc_infer(
            self._context.pointer,
            self._inputs.structs,
            len(self._input_infos),
            made,
            len(made),
            self._error,
        )
        check(status, self._error)
        return [
            info.at(tuple(one.sizes[: one.rank]), tuple(one.strides[: one.rank]))
            for info, one in zip(self._output_infos, made, strict=True)
        ]
