"""ONNX's element types as torch's, and arrays of numpy as tensors and back.

Types of fewer than 8 bits have no dtype in torch. Their values are carried in the next wider one: i8 and u8 for
integers, f32 for f4.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

FLOAT8 = {
    17: "float8_e4m3fn",
    18: "float8_e4m3fnuz",
    19: "float8_e5m2",
    20: "float8_e5m2fnuz",
    24: "float8_e8m0fnu",
}

# Code of TensorProto.DataType -> dtype.
DTYPES: dict[int, torch.dtype] = {
    1: torch.float32,
    2: torch.uint8,
    3: torch.int8,
    4: torch.uint16,
    5: torch.int16,
    6: torch.int32,
    7: torch.int64,
    9: torch.bool,
    10: torch.float16,
    11: torch.float64,
    12: torch.uint32,
    13: torch.uint64,
    14: torch.complex64,
    15: torch.complex128,
    16: torch.bfloat16,
    **{code: getattr(torch, name) for code, name in FLOAT8.items()},
    21: torch.uint8,
    22: torch.int8,
    23: torch.float32,
    25: torch.uint8,
    26: torch.int8,
}

# Codes of integers of fewer than 8 bits -> lowest and highest value.
NARROW_INTEGERS = {21: (0, 15), 22: (-8, 7), 25: (0, 3), 26: (-2, 1)}
FLOAT4 = 23

# Unsigned dtypes for which torch has few ops; these are computed in i64.
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)

# What the carried values are for numpy, where a graph's output says that it is of such a type.
_NUMPY = {
    21: ml_dtypes.uint4,
    22: ml_dtypes.int4,
    23: ml_dtypes.float4_e2m1fn,
    25: ml_dtypes.uint2,
    26: ml_dtypes.int2,
}
_CARRIED = {np.dtype(_NUMPY[code]): DTYPES[code] for code in _NUMPY}

_BYTES = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    **{
        np.dtype(getattr(ml_dtypes, name)): (np.uint8, getattr(torch, name))
        for name in FLOAT8.values()
    },
}


def from_numpy(array: np.ndarray) -> torch.Tensor:
    """The array's values; its memory where it is writable and of a dtype that torch has."""
    array = np.asarray(array)
    shape = array.shape
    if not array.flags.writeable or not array.flags.c_contiguous:
        array = np.array(array, order="C")
    if array.dtype in _BYTES:
        seen, dtype = _BYTES[array.dtype]
        return torch.from_numpy(array.reshape(-1).view(seen)).view(dtype).reshape(shape)
    if array.dtype in _CARRIED:
        dtype = _CARRIED[array.dtype]
        return torch.from_numpy(array.astype(np.float32)).to(dtype)
    return torch.from_numpy(array)


def to_numpy(tensor: torch.Tensor, code: int = 0) -> np.ndarray:
    """The tensor's values, as the element type `code` where that has no dtype in torch."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    if code in _NUMPY:
        return np.asarray(tensor.numpy().astype(_NUMPY[code]))
    for numpy_dtype, (seen, dtype) in _BYTES.items():
        if tensor.dtype == dtype:
            raw = tensor.contiguous().view(torch.int16 if seen is np.int16 else torch.uint8).numpy()
            return raw.view(numpy_dtype)
    return np.asarray(tensor.numpy())


def is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point
