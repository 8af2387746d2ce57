"""Models and their tensors as they lie in files."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from mlcc._errors import Error
from mlcc.onnx.dtypes import NARROW_INTEGERS, from_numpy

_STRING = onnx.TensorProto.STRING
_ELEMENT_TYPES = frozenset(onnx.TensorProto.DataType.values()) - {onnx.TensorProto.UNDEFINED}


def read_model(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    """The model and the folder that external data may lie in."""
    model, folder = _parsed(source)
    _check_text(model)
    return model, folder


def _parsed(source: Any) -> tuple[onnx.ModelProto, Path | None]:
    if isinstance(source, onnx.ModelProto):
        return source, None
    try:
        if isinstance(source, (bytes, bytearray, memoryview)):
            return onnx.ModelProto.FromString(bytes(source)), None
        path = Path(source)
        return onnx.ModelProto.FromString(path.read_bytes()), path.resolve().parent
    except DecodeError as error:
        shown = "the bytes" if isinstance(source, (bytes, bytearray, memoryview)) else source
        raise Error(f"onnx: {shown}: not a model of ONNX: {error}") from error
    except OSError as error:
        raise Error(f"onnx: {error}") from error


def _check_text(message: Message) -> None:
    """Names that are no text are bytes in protobuf's Python."""
    for field, value in message.ListFields():
        values = value if field.is_repeated else [value]
        if field.type == FieldDescriptor.TYPE_STRING:
            strange = next((one for one in values if isinstance(one, bytes)), None)
            if strange is not None:
                raise Error(
                    f"onnx: {message.DESCRIPTOR.name}.{field.name}: found {strange!r}, expected text in UTF-8"
                )
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            for one in values:
                _check_text(one)


def read_tensor(proto: onnx.TensorProto, folder: Path | None) -> torch.Tensor:
    if proto.data_type == _STRING:
        raise Error(f"onnx: tensor {proto.name!r}: strings are not supported")
    if proto.data_type not in _ELEMENT_TYPES:
        raise Error(f"onnx: tensor {proto.name!r}: element type {proto.data_type} is not known")
    if min(proto.dims, default=0) < 0:
        raise Error(f"onnx: tensor {proto.name!r}: found sizes {list(proto.dims)}")
    try:
        if proto.data_location == onnx.TensorProto.EXTERNAL:
            return _read_external(proto, folder)
        return from_numpy(onnx.numpy_helper.to_array(proto))
    except (ValueError, TypeError) as error:
        raise Error(f"onnx: tensor {proto.name!r}: {error}") from error


def _read_external(proto: onnx.TensorProto, folder: Path | None) -> torch.Tensor:
    """Mapped, not read: files are larger than what a process may want to hold."""
    entries = {entry.key: entry.value for entry in proto.external_data}
    name = repr(proto.name)
    if folder is None:
        raise Error(
            f"onnx: tensor {name}: its data lies in a file beside the model, so load the model by its path"
        )
    path = _inside(folder, entries.get("location", ""), name)
    offset, shape = int(entries.get("offset", 0)), tuple(proto.dims)
    count = math.prod(shape)
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(proto.data_type))
    packed = proto.data_type in NARROW_INTEGERS or proto.data_type == onnx.TensorProto.FLOAT4E2M1
    wanted = int(entries.get("length", 0)) if packed else count * dtype.itemsize
    size = path.stat().st_size
    if offset < 0 or wanted < 0 or offset + wanted > size:
        raise Error(
            f"onnx: tensor {name}: needs bytes {offset} to {offset + wanted} of {path.name}, which has {size}"
        )
    if packed or not count:
        inner = onnx.TensorProto(data_type=proto.data_type, dims=proto.dims)
        with path.open("rb") as file:
            file.seek(offset)
            inner.raw_data = file.read(wanted)
        return from_numpy(onnx.numpy_helper.to_array(inner))
    mapped = np.memmap(path, dtype=np.uint8, mode="c", offset=offset, shape=(wanted,))
    return from_numpy(np.asarray(mapped).view(dtype).reshape(shape))


def _inside(folder: Path, location: str, name: str) -> Path:
    path = Path(os.path.realpath(folder / location))
    if (
        not location
        or Path(location).is_absolute()
        or not path.is_relative_to(os.path.realpath(folder))
    ):
        raise Error(
            f"onnx: tensor {name}: its data must lie in the model's folder, found {location!r}"
        )
    if not path.is_file():
        raise Error(f"onnx: tensor {name}: there is no file {location!r} in {folder}")
    return path
