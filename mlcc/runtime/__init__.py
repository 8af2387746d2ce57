"""Runs packages that `mlcc.export` wrote, without torch: Python over the C library `libmlcc_runtime`.

    model = load("model.mlcc")
    scores = model(image)          # numpy arrays, or whatever speaks DLPack

It needs numpy and nothing else. The same files run from C (mlcc_runtime.h). A package is code: load only files of those
whom you would trust with a program.
"""

from __future__ import annotations

from .library import PackageError
from .model import Model, load
from .tensors import TensorInfo

__all__ = ["Model", "PackageError", "TensorInfo", "load"]
