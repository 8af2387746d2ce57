"""What a workload is run by: mlcc, eager PyTorch, and the peers that are installed.

call = prepare("onnxruntime", case)     # compiled; raises UnavailableError where a peer cannot run it
results = call()                        # a list of tensors, or of what to_tensors() takes
"""

from __future__ import annotations

import functools
import importlib.util
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.roofline import trace
from benchmarks.workloads import Case


class UnavailableError(Exception):
    """A peer that is not installed, or that cannot run a workload; the text says why."""


# What is timed, and what makes a list of tensors of what it returned.
Prepared = tuple[Callable[[], Any], Callable[[Any], list[Tensor]]]


@dataclass(frozen=True)
class Contender:
    """A workload made ready by one of them."""

    name: str
    call: Callable[[], Any]
    results: Callable[[], list[Tensor]]  # of one call
    compile_seconds: float  # the first call included, loading the compiler's libraries not


class _Module(nn.Module):
    """A workload as exporters want it: tensors in, a tuple of tensors out, nothing changed in place."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self._case = case
        if isinstance(case.function, nn.Module):
            self.function = case.function  # whose weights are then known as parameters

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """The function's tensors."""
        return self._case.pure(*inputs)


def _exportable(case: Case) -> nn.Module:
    """As a user has it, but for lists of tensors changed in place: these are taken apart."""
    is_module = isinstance(case.function, nn.Module)
    return trace(case) if case.in_place and not is_module else _Module(case)


def _is_of_bfloat16(case: Case) -> bool:
    """Whether inputs or weights are."""
    weights = case.function.parameters() if isinstance(case.function, nn.Module) else ()
    return any(tensor.dtype == torch.bfloat16 for tensor in (*case.inputs, *weights))


def _of_torch(function: Callable[..., object], case: Case) -> Prepared:
    """In-place workloads get inputs of their own, so that contenders do not meet in them."""
    inputs = _own_inputs(case)
    call = lambda: function(*inputs)  # noqa: E731
    changed = [inputs[place] for place in case.in_place]
    return call, lambda done: [leaf for leaf in (*tree_leaves(done), *changed) if _is_tensor(leaf)]


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, Tensor)


def _own_inputs(case: Case) -> tuple[Tensor, ...]:
    return tuple(
        tensor.clone() if place in case.in_place else tensor
        for place, tensor in enumerate(case.inputs)
    )


def _eager(case: Case, threads: int) -> Prepared:
    del threads
    return _of_torch(case.function, case)


def _mlcc(**options: Any) -> Callable[[Case, int], Prepared]:
    def prepare_it(case: Case, threads: int) -> Prepared:
        del threads
        import mlcc

        return _of_torch(mlcc.jit(case.function, **options), case)

    return prepare_it


def _compiled(**options: Any) -> Callable[[Case, int], Prepared]:
    def prepare_it(case: Case, threads: int) -> Prepared:
        del threads
        torch._dynamo.reset()
        return _of_torch(torch.compile(case.function, **options), case)

    return prepare_it


def _frozen(**options: Any) -> Callable[[Case, int], Prepared]:
    """Inductor with the weights as constants, which tracing and compiling read from its configuration."""

    def prepare_it(case: Case, threads: int) -> Prepared:
        del threads
        torch._dynamo.reset()
        prepared = _of_torch(torch.compile(case.function, **options), case)
        with torch._inductor.config.patch(freezing=True):
            prepared[0]()
        return prepared

    return prepare_it


# What a peer changes in place comes out of one call as a result and goes into the next one as an input.


def _onnxruntime(case: Case, threads: int) -> Prepared:
    _needs("onnxruntime")
    if _is_of_bfloat16(case):
        raise UnavailableError("has no kernels for bfloat16 on CPUs")
    import onnxruntime

    program = torch.onnx.export(_exportable(case), case.inputs, dynamo=True, verbose=False)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Its threads wait in a loop for the next call, on the core that the next contender's second thread needs.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    session = onnxruntime.InferenceSession(
        program.model_proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [slot.name for slot in session.get_inputs()]

    def bind() -> Any:
        binding = session.io_binding()
        for name, tensor in zip(names, case.inputs, strict=True):
            value = onnxruntime.OrtValue.ortvalue_from_numpy(tensor.numpy())
            binding.bind_ortvalue_input(name, value)
        for slot in session.get_outputs():
            binding.bind_output(slot.name)
        return binding

    if not case.in_place:
        binding = bind()

        def call() -> Any:
            session.run_with_iobinding(binding)
            return binding
    else:
        pair = [bind(), bind()]  # a binding keeps the memory of its outputs

        def call() -> Any:
            session.run_with_iobinding(pair[0])
            changed = pair[0].get_outputs()[-len(case.in_place) :]
            for place, value in zip(case.in_place, changed, strict=True):
                pair[1].bind_ortvalue_input(names[place], value)
            pair.reverse()
            return pair[1]

    return call, lambda done: [torch.from_numpy(array) for array in done.copy_outputs_to_cpu()]


def _openvino(case: Case, threads: int) -> Prepared:
    _needs("openvino")
    if case.is_random:
        raise UnavailableError("leaves dropout out")
    import openvino

    module = _exportable(case)
    try:
        model = openvino.convert_model(module, example_input=case.inputs)
    except Exception:  # what its reader of traces does not know, that of exported programs may
        program = torch.export.export(module, case.inputs, strict=False).run_decompositions()
        model = openvino.convert_model(program)
    config: dict[str, Any] = {"INFERENCE_NUM_THREADS": threads}
    if not _is_of_bfloat16(case):
        config["INFERENCE_PRECISION_HINT"] = "f32"
    compiled = openvino.compile_model(model, "CPU", config)

    def request() -> Any:
        made = compiled.create_infer_request()
        for place, tensor in enumerate(case.inputs):
            made.set_input_tensor(place, _to_openvino(tensor))
        return made

    if not case.in_place:
        only = request()

        def call() -> Any:
            only.infer(share_outputs=True)
            return only
    else:
        pair = [request(), request()]  # a request keeps the memory of its outputs
        first = len(compiled.outputs) - len(case.in_place)

        def call() -> Any:
            pair[0].infer(share_outputs=True)
            for number, place in enumerate(case.in_place):
                pair[1].set_input_tensor(place, pair[0].get_output_tensor(first + number))
            pair.reverse()
            return pair[1]

    count = len(compiled.outputs)
    return call, lambda done: [_of_openvino(done.get_output_tensor(i)) for i in range(count)]


def _to_openvino(tensor: Tensor) -> Any:
    """A copy where NumPy has no such dtype."""
    import openvino

    if tensor.dtype != torch.bfloat16:
        return openvino.Tensor(tensor.numpy(), shared_memory=True)
    made = openvino.Tensor(openvino.Type.bf16, list(tensor.shape))
    made.data.view("uint16")[...] = tensor.view(torch.uint16).numpy()
    return made


def _of_openvino(tensor: Any) -> Tensor:
    """A copy."""
    import openvino

    if tensor.element_type == openvino.Type.bf16:
        return torch.from_numpy(tensor.data.view("uint16").copy()).view(torch.bfloat16)
    return torch.from_numpy(tensor.data.copy())


def _jax(case: Case, threads: int) -> Prepared:
    _needs("jax")
    del threads  # by the environment
    import jax

    from benchmarks import jax_ops

    function = jax_ops.translate(case)
    arrays = [jax.device_put(jax_ops.to_array(tensor)) for tensor in case.inputs]
    if case.is_random:
        seeds, drawing = itertools.count(), jax.jit(function)

        def call() -> Any:
            return jax.block_until_ready(drawing(next(seeds), *arrays))
    elif case.in_place:
        step = jax.jit(functools.partial(function, 0), donate_argnums=case.in_place)

        def call() -> Any:
            results = jax.block_until_ready(step(*arrays))
            for place, value in zip(case.in_place, results[-len(case.in_place) :], strict=True):
                arrays[place] = value
            return results
    else:
        jitted = jax.jit(functools.partial(function, 0))

        def call() -> Any:
            return jax.block_until_ready(jitted(*arrays))

    return call, lambda done: [jax_ops.to_tensor(array) for array in done]


# Packages that the extra `peers` of setup.py installs.
_PACKAGES = {
    "onnxruntime": ("onnxruntime", "onnx", "onnxscript"),
    "openvino": ("openvino",),
    "jax": ("jax",),
}


def missing_packages(peer: str) -> list[str]:
    """What a peer needs and this Python lacks."""
    return [name for name in _PACKAGES.get(peer, ()) if importlib.util.find_spec(name) is None]


def _needs(peer: str) -> None:
    if missing := missing_packages(peer):
        raise UnavailableError(f"not installed: {', '.join(missing)}")


_PREPARATIONS: dict[str, Callable[[Case, int], Prepared]] = {
    "eager": _eager,
    "mlcc": _mlcc(),  # sizes are symbols
    "mlcc_static": _mlcc(dynamic=False),
    "mlcc_compile": _compiled(backend="mlcc"),
    "mlcc_compile_dynamic": _compiled(backend="mlcc", dynamic=True),
    "inductor": _compiled(),
    "inductor_max_autotune": _compiled(mode="max-autotune-no-cudagraphs"),
    "inductor_freezing": _frozen(),
    "inductor_freezing_max_autotune": _frozen(mode="max-autotune-no-cudagraphs"),
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "jax": _jax,
}
OWN = ("eager", "mlcc", "mlcc_static")
PEERS = ("inductor", "inductor_max_autotune", "onnxruntime", "openvino", "jax")
CONTENDERS = tuple(_PREPARATIONS)


def prepare(name: str, case: Case, threads: int = 1) -> Contender:
    """The case made ready and called once. Raises UnavailableError where it cannot be."""
    _load(name)
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


def _load(name: str) -> None:
    """Import what is needed, and make torch's tracing load what it loads at its first use."""
    if name.startswith("mlcc"):
        import mlcc

        mlcc.jit(torch.neg)(torch.ones(2))
    if name.startswith(("mlcc_compile", "inductor")):
        torch.compile(torch.neg, backend="eager")(torch.ones(2))
    if name.startswith("inductor"):
        importlib.import_module("torch._inductor.compile_fx")
    if not missing_packages(name):
        for package in _PACKAGES.get(name, ()):
            importlib.import_module(package)


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
