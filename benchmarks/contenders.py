"""What a workload is run by: mlcc, eager PyTorch, and the peers that are installed.

call = prepare("onnxruntime", case)     # compiled; raises UnavailableError where a peer cannot run it
results = call()                        # a list of tensors, or of what to_tensors() takes
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import Case


class UnavailableError(Exception):
    """A peer that is not installed, or that cannot run a workload; the text says why."""


@dataclass(frozen=True)
class Contender:
    """A workload made ready by one of them."""

    name: str
    call: Callable[[], Any]
    results: Callable[[], list[Tensor]]  # of one call
    compile_seconds: float  # the first call included


class _Module(nn.Module):
    """The function as exporters want it: tensors in, a tuple of tensors out."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's tensors."""
        return tuple(_tensors(self._function(*inputs)))


def _tensors(results: object) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(results) if isinstance(leaf, Tensor)]


def _of_torch(function: Callable[..., object], case: Case) -> tuple[Callable[[], Any], Any]:
    """In-place workloads get inputs of their own, so that contenders do not meet in them."""
    inputs = _own_inputs(case)
    call = lambda: function(*inputs)  # noqa: E731
    changed = [inputs[place] for place in case.in_place]
    return call, lambda results: [*_tensors(results), *changed]


def _own_inputs(case: Case) -> tuple[Tensor, ...]:
    return tuple(
        tensor.clone() if place in case.in_place else tensor
        for place, tensor in enumerate(case.inputs)
    )


def _eager(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
    del threads
    return _of_torch(case.function, case)


def _mlcc(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
    del threads
    import mlcc

    return _of_torch(mlcc.jit(case.function), case)


def _compiled(**options: Any) -> Callable[[Case, int], tuple[Callable[[], Any], Any]]:
    def prepare_it(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
        del threads
        torch._dynamo.reset()
        return _of_torch(torch.compile(case.function, **options), case)

    return prepare_it


def _onnxruntime(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
    _needs("onnxruntime", "onnx", "onnxscript")
    _needs_pure(case)
    import onnxruntime

    program = torch.onnx.export(_Module(case.function), case.inputs, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    binding = session.io_binding()
    for slot, tensor in zip(session.get_inputs(), case.inputs, strict=True):
        if tensor.dtype == torch.bfloat16:
            raise UnavailableError("bfloat16 on the CPU")
        value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
        binding.bind_ortvalue_input(slot.name, value)
    for slot in session.get_outputs():
        binding.bind_output(slot.name)

    def call() -> Any:
        session.run_with_iobinding(binding)
        return binding

    return call, lambda done: [torch.from_numpy(array) for array in done.copy_outputs_to_cpu()]


def _openvino(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
    _needs("openvino")
    _needs_pure(case)
    import openvino

    model = openvino.convert_model(_Module(case.function), example_input=case.inputs)
    is_bf16 = any(tensor.dtype == torch.bfloat16 for tensor in case.inputs)
    if is_bf16:
        raise UnavailableError("bfloat16 tensors in and out")
    config = {"INFERENCE_PRECISION_HINT": "f32", "INFERENCE_NUM_THREADS": threads}
    request = openvino.compile_model(model, "CPU", config).create_infer_request()
    arrays = [tensor.numpy() for tensor in case.inputs]

    def call() -> Any:
        return request.infer(arrays, share_inputs=True, share_outputs=True)

    return call, lambda done: [torch.from_numpy(done[i].copy()) for i in range(len(done))]


def _jax(case: Case, threads: int) -> tuple[Callable[[], Any], Any]:
    _needs("jax")
    _needs_pure(case)
    del threads  # by the environment: XLA_FLAGS
    import jax

    from benchmarks import jax_ops

    function = jax.jit(jax_ops.translate(_Module(case.function), case.inputs))
    arrays = [jax.device_put(jax_ops.to_array(tensor)) for tensor in case.inputs]

    def call() -> Any:
        return jax.block_until_ready(function(*arrays))

    return call, lambda done: [jax_ops.to_tensor(array) for array in done]


def _needs(*packages: str) -> None:
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise UnavailableError(f"not installed: {', '.join(missing)}")


def _needs_pure(case: Case) -> None:
    if case.in_place:
        raise UnavailableError("changes its inputs in place")


_PREPARATIONS: dict[str, Callable[[Case, int], tuple[Callable[[], Any], Any]]] = {
    "eager": _eager,
    "mlcc": _mlcc,
    "mlcc_compile": _compiled(backend="mlcc"),
    "mlcc_dynamic": _compiled(backend="mlcc", dynamic=True),
    "inductor": _compiled(),
    "inductor_max_autotune": _compiled(mode="max-autotune-no-cudagraphs"),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "jax": _jax,
}
PEERS = ("inductor", "inductor_max_autotune", "onnxruntime", "openvino", "jax")
CONTENDERS = tuple(_PREPARATIONS)


def prepare(name: str, case: Case, threads: int = 1) -> Contender:
    """The case made ready and called once. Raises UnavailableError where it cannot be."""
    start = time.perf_counter()
    try:
        call, to_tensors = _PREPARATIONS[name](case, threads)
        call()
    except UnavailableError:
        raise
    except Exception as error:  # of a peer's exporter or compiler: its own limits
        if name.startswith(("mlcc", "eager")):
            raise
        raise UnavailableError(
            f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        ) from error
    seconds = time.perf_counter() - start
    return Contender(name, call, lambda: to_tensors(call()), seconds)


def largest_error(results: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """max |a - b| over max |b|, the largest of all results; infinite where they differ in number or shape."""
    if [r.shape for r in results] != [e.shape for e in expected]:
        return float("inf")
    errors = [0.0]
    for result, reference in zip(results, expected, strict=True):
        difference = (result.double() - reference.double()).abs().max() if result.numel() else 0.0
        scale = reference.double().abs().max() if reference.numel() else 1.0
        errors.append(float(difference) / max(float(scale), 1e-30))
    return max(errors)
