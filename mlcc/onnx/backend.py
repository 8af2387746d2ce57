"""`mlcc.onnx.Backend`, by which onnx's own tests run the models that `mlcc.onnx.load` makes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import torch
from onnx.backend.base import Backend as _Backend
from onnx.backend.base import BackendRep, namedtupledict

from mlcc.onnx.dtypes import from_numpy, to_numpy
from mlcc.onnx.loading import load
from mlcc.onnx.module import OnnxModule


class Prepared(BackendRep):
    def __init__(self, module: OnnxModule, call: Callable[..., Any], device: str) -> None:
        self.module, self._call, self._device = module, call, device

    def run(self, inputs: Any, **kwargs: Any) -> tuple[Any, ...]:
        if not isinstance(inputs, (list, tuple)):
            inputs = [inputs]
        with torch.no_grad():
            results = self._call(*[self._to_torch(value) for value in inputs])
        if len(self.module.output_names) == 1:
            results = (results,)
        types = self.module.output_types
        values = tuple(_to_numpy(value, code) for value, code in zip(results, types, strict=True))
        names = self.module.output_names
        return (
            namedtupledict("Outputs", names)(*values) if len(set(names)) == len(names) else values
        )

    def _to_torch(self, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [self._to_torch(item) for item in value]
        return None if value is None else from_numpy(np.asarray(value)).to(self._device)


def _to_numpy(value: Any, code: int) -> Any:
    if isinstance(value, list):
        return [_to_numpy(item, code) for item in value]
    return None if value is None else to_numpy(value, code)


class Backend(_Backend):
    """Runs eagerly; `compiler` of a class derived from it may be `mlcc.jit` or what else takes a module."""

    compiler: Callable[[OnnxModule], Callable[..., Any]] | None = None

    @classmethod
    def is_compatible(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        return cls.supports_device(device)

    @classmethod
    def prepare(cls, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Prepared:
        module = load(model).to(device.lower())
        call = module if cls.compiler is None else cls.compiler(module)
        return Prepared(module, call, device.lower())

    @classmethod
    def run_model(
        cls, model: onnx.ModelProto, inputs: Any, device: str = "CPU", **kwargs: Any
    ) -> tuple[Any, ...]:
        return cls.prepare(model, device).run(inputs)

    @classmethod
    def run_node(
        cls,
        node: onnx.NodeProto,
        inputs: Any,
        device: str = "CPU",
        outputs_info: Sequence[tuple[Any, Any]] | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        arrays = [np.asarray(value) for value in inputs]
        names = [name for name in node.input if name]
        infos = [
            onnx.helper.make_tensor_value_info(
                name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in zip(names, arrays, strict=True)
        ]
        outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
        graph = onnx.helper.make_graph([node], "node", infos, outputs)
        version = kwargs.get("opset_version", onnx.defs.onnx_opset_version())
        opsets = [onnx.helper.make_opsetid(node.domain, version)]
        if node.domain:
            opsets.append(onnx.helper.make_opsetid("", onnx.defs.onnx_opset_version()))
        return cls.run_model(onnx.helper.make_model(graph, opset_imports=opsets), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        if device.upper().startswith("CUDA"):
            return torch.cuda.is_available()
        return device.upper().startswith("CPU")
