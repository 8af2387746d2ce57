"""The C library, as ctypes sees it: declarations of mlcc_runtime.h, and where the file lies."""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

OK = 0
CHECK_FAILED = 4
CHECK_WEIGHTS = 1
COPY_WEIGHTS = 2


class PackageError(Exception):
    """A package cannot be opened or run; the text names what was found and what was expected."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.status = status  # mlcc_status


class ErrorStruct(ctypes.Structure):
    """mlcc_error"""

    _fields_ = (("status", ctypes.c_int), ("text", ctypes.c_char * 508))


class TensorStruct(ctypes.Structure):
    """mlcc_tensor"""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
    )


class WeightStruct(ctypes.Structure):
    """mlcc_weight"""

    _fields_ = (("name", ctypes.c_char_p), ("tensor", TensorStruct))


class TensorInfoStruct(ctypes.Structure):
    """mlcc_tensor_info"""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("dtype", ctypes.c_int),
        ("rank", ctypes.c_int32),
        ("sizes", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("size_texts", ctypes.POINTER(ctypes.c_char_p)),
    )


class ContextOptionsStruct(ctypes.Structure):
    """mlcc_context_options"""

    _fields_ = (
        ("arena", ctypes.c_void_p),
        ("arena_bytes", ctypes.c_size_t),
        ("allocate", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("allocator_user", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("parallel_for", ctypes.c_void_p),
        ("parallel_user", ctypes.c_void_p),
    )


def library_path() -> Path:
    """libmlcc_runtime.so, beside this package or, inside of mlcc, beside that."""
    here = Path(__file__).parent
    for folder in (here, here.parent):
        if (folder / "libmlcc_runtime.so").exists():
            return folder / "libmlcc_runtime.so"
    raise PackageError(f"libmlcc_runtime.so is missing in {here}", 0)


@functools.cache
def library() -> Any:
    """The library, opened at the first call."""
    found = ctypes.CDLL(str(library_path()))
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    error = ctypes.POINTER(ErrorStruct)
    info = ctypes.POINTER(TensorInfoStruct)
    tensors = ctypes.POINTER(TensorStruct)
    for name, result, arguments in (
        ("mlcc_runtime_version", ctypes.c_char_p, ()),
        (
            "mlcc_package_open",
            ctypes.c_int,
            (ctypes.c_char_p, ctypes.c_uint32, ctypes.POINTER(pointer), error),
        ),
        ("mlcc_package_close", None, (pointer,)),
        ("mlcc_package_manifest", pointer, (pointer, ctypes.POINTER(size))),
        ("mlcc_package_num_inputs", size, (pointer,)),
        ("mlcc_package_num_outputs", size, (pointer,)),
        ("mlcc_package_input", ctypes.c_int, (pointer, size, info)),
        ("mlcc_package_output", ctypes.c_int, (pointer, size, info)),
        (
            "mlcc_package_arena_bytes",
            ctypes.c_int,
            (pointer, tensors, size, ctypes.POINTER(size), error),
        ),
        (
            "mlcc_package_num_weights",
            ctypes.c_int,
            (pointer, ctypes.POINTER(size), error),
        ),
        ("mlcc_package_weight", ctypes.c_int, (pointer, size, info, error)),
        (
            "mlcc_package_refit",
            ctypes.c_int,
            (pointer, ctypes.POINTER(WeightStruct), size, error),
        ),
        (
            "mlcc_context_create",
            ctypes.c_int,
            (pointer, ctypes.POINTER(ContextOptionsStruct), ctypes.POINTER(pointer), error),
        ),
        ("mlcc_context_destroy", None, (pointer,)),
        ("mlcc_infer", ctypes.c_int, (pointer, tensors, size, tensors, size, error)),
        ("mlcc_run", ctypes.c_int, (pointer, tensors, size, tensors, size, error)),
    ):
        function = getattr(found, name)
        function.restype = result
        function.argtypes = arguments
    return found


def check(status: int, error: ErrorStruct) -> None:
    """Raises what the library tells."""
    if status != OK:
        raise PackageError(error.text.decode(errors="replace"), status)
