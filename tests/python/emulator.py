"""The CUDA emulator's controls, and kernels from texts of one's own on it, by ctypes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_size_t, c_uint, c_ulonglong, c_void_p
from functools import cache
from typing import Any

import torch

from tests.python.cuda_tools import BUILD

SCHEDULES = ("forward", "reverse", "random", "skew-first", "skew-last")


class LaunchBytes(ctypes.Structure):
    """MlccEmulatorBytes of emulator.h."""

    _fields_ = [
        ("begin", c_void_p),
        ("size", c_ulonglong),
        ("read", c_ulonglong),
        ("written", c_ulonglong),
        ("read_total", c_ulonglong),
        ("written_total", c_ulonglong),
    ]


@cache
def library() -> ctypes.CDLL:
    """The library that MLCC_GPU=emulate opens too."""
    emulator = ctypes.CDLL(str(BUILD / "mlcc" / "libmlcc_emulator.so"))
    emulator.mlcc_emulator_last_fault.restype = c_char_p
    return emulator


def set_option(name: str, value: object) -> None:
    """A setting MLCC_EMULATOR_<NAME>."""
    assert library().mlcc_emulator_set(name.encode(), str(value).encode())


@contextmanager
def schedule(name: str) -> Iterator[None]:
    """In which order threads run."""
    set_option("schedule", name)
    try:
        yield
    finally:
        set_option("schedule", "forward")


@contextmanager
def known_memory(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Memory of these tensors is counted apart, and an access outside of what is known is found under `strict`."""
    emulator = library()
    places = [(x.data_ptr(), x.untyped_storage().nbytes()) for x in tensors if x.numel()]
    for begin, size in places:
        emulator.mlcc_emulator_register_range(c_void_p(begin), c_ulonglong(size))
    try:
        yield
    finally:
        for begin, _ in places:
            emulator.mlcc_emulator_unregister_range(c_void_p(begin))


def count_bytes(tensors: Sequence[torch.Tensor], call: Callable[[], Any]) -> int:
    """Bytes that the launches of one call move, all of them between memory of these tensors.

    Of each byte counts how often one iteration of a kernel reads and writes it at most.
    """
    emulator = library()
    emulator.mlcc_emulator_clear_launches()
    emulator.mlcc_emulator_count_bytes(1)
    try:
        with known_memory(tensors):
            call()
    finally:
        emulator.mlcc_emulator_count_bytes(0)
    launches = emulator.mlcc_emulator_launch_count()
    assert launches > 0
    total = 0
    moved = LaunchBytes()
    for launch in range(launches):
        assert not emulator.mlcc_emulator_launch_bytes(launch, c_void_p(), byref(moved))
        for x in tensors:
            if emulator.mlcc_emulator_launch_bytes(launch, c_void_p(x.data_ptr()), byref(moved)):
                total += moved.read + moved.written
    return total


class EmulatedProgram:
    """CUDA text, compiled by the emulator. Raises RuntimeError with the compiler's log where it does not compile."""

    def __init__(self, text: str) -> None:
        emulator = library()
        assert emulator.cuInit(0) == 0
        context = c_void_p()
        assert emulator.cuDevicePrimaryCtxRetain(byref(context), 0) == 0
        assert emulator.cuCtxSetCurrent(context) == 0
        program, size = c_void_p(), c_size_t()
        assert (
            emulator.nvrtcCreateProgram(byref(program), text.encode(), b"edited", 0, None, None)
            == 0
        )
        options = (c_char_p * 2)(b"--gpu-architecture=sm_90", b"--std=c++17")
        if emulator.nvrtcCompileProgram(program, 2, options) != 0:
            emulator.nvrtcGetProgramLogSize(program, byref(size))
            log = ctypes.create_string_buffer(size.value)
            emulator.nvrtcGetProgramLog(program, log)
            raise RuntimeError(log.value.decode())
        emulator.nvrtcGetCUBINSize(program, byref(size))
        code = ctypes.create_string_buffer(size.value)
        emulator.nvrtcGetCUBIN(program, code)
        emulator.nvrtcDestroyProgram(byref(program))
        self._library = c_void_p()
        assert (
            emulator.cuLibraryLoadData(byref(self._library), code, None, None, 0, None, None, 0)
            == 0
        )

    def launch(
        self,
        name: str,
        grid: int,
        threads: int,
        shared: int,
        arguments: Sequence[torch.Tensor | int],
    ) -> str | None:
        """Run a function on tensors and i64 numbers; the fault, if one was found."""
        emulator = library()
        kernel = c_void_p()
        assert emulator.cuLibraryGetKernel(byref(kernel), self._library, name.encode()) == 0
        values = [
            c_void_p(x.data_ptr()) if isinstance(x, torch.Tensor) else ctypes.c_longlong(x)
            for x in arguments
        ]
        parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        blocks = (c_uint(grid), c_uint(1), c_uint(1), c_uint(threads), c_uint(1), c_uint(1))
        status = emulator.cuLaunchKernel(
            kernel, *blocks, c_uint(shared), None, ctypes.cast(parameters, POINTER(c_void_p)), None
        )
        return None if status == 0 else str(emulator.mlcc_emulator_last_fault().decode())
