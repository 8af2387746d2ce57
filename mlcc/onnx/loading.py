"""`mlcc.onnx.load`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from mlcc._errors import Error

if TYPE_CHECKING:
    from mlcc.onnx.module import OnnxModule


def check_is_installed() -> None:
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise Error("mlcc.onnx needs the package `onnx`: pip install onnx") from error


def load(model: str | os.PathLike[str] | bytes | Any) -> OnnxModule:
    """A model of ONNX as a torch.nn.Module, which runs, compiles, trains and exports as others do.

    model: a path, the bytes of a file, or an onnx.ModelProto. Data that lies in files beside the model is mapped; it
        must lie in the model's folder.

    Initializers of floating dtypes become parameters, other tensors buffers, under their names in the file. Raises
    Error where the model has ops that are not known; all of them are listed.
    """
    check_is_installed()
    from mlcc.onnx import ops  # noqa: F401  (puts the functions into the registry)
    from mlcc.onnx.building import Builder
    from mlcc.onnx.module import module_of
    from mlcc.onnx.reading import read_model

    proto, folder = read_model(model)
    builder = Builder(proto, folder)
    graph = builder.build()
    module: OnnxModule = module_of(graph, builder.tensors).eval()
    return module
