"""Linear layers that torchao quantized: mlcc beside eager, its own float layers and, if asked for, TorchInductor.

usage: python benchmarks/quantized.py [--rows 1,4,32,128] [--sizes 2048x2048,1984x5632] [--kinds int8,int4]
           [--dtype float32] [--activations int8] [--layers N] [--seconds S] [--threads N]
           [--inductor] [--openvino] [--onnxruntime]

A row is four layers of one size, so that weights come from memory; its columns are the time of a call in ms, bytes of
quantized weights read in a second beside the best read of the same buffer size, and how many times sooner mlcc is than
its own float layers, than eager, and than peers. What is compared runs in turns. OpenVINO has the weights that nncf
compresses (a package that `make peers` leaves out), ONNX Runtime those of MatMulNBits; both make bytes of rows where
they like.
"""

from __future__ import annotations

import argparse
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.harness import compare  # noqa: E402 (behind the path)

logging.disable(logging.WARNING)  # torchao tells of libraries for GPUs
warnings.filterwarnings("ignore")
from torchao import quantization as ao  # noqa: E402

GROUP = 32
KINDS = {
    "int8": lambda: ao.Int8WeightOnlyConfig(),
    "int4": lambda: ao.IntxWeightOnlyConfig(
        weight_dtype=torch.int4, granularity=ao.PerGroup(GROUP)
    ),
    "int8-rows": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
    "int4-rows": lambda: ao.Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=ao.PerGroup(GROUP)
    ),
    "float8": lambda: ao.Float8WeightOnlyConfig(),
}


def layers(columns: int, terms: int, count: int, dtype: torch.dtype, kind: str | None) -> nn.Module:
    """Layers that each take the same rows; quantized, unless `kind` is None."""
    torch.manual_seed(0)
    made = nn.ModuleList([nn.Linear(terms, columns, bias=False) for _ in range(count)])
    model = _Layers(made).to(dtype).eval()
    if kind is not None:
        ao.quantize_(model, KINDS[kind]())
    return model


class _Layers(nn.Module):
    def __init__(self, layers: nn.ModuleList) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        """What each layer makes of the rows."""
        return [layer(x) for layer in self.layers]


def weight_bytes(model: nn.Module, bits: int) -> int:
    """Of all weights, at so many bits each, and their scales: what a call has to read. Zero points are all 0."""
    return sum(_bytes(parameter.data, bits) for parameter in model.parameters())


def _bytes(tensor: torch.Tensor, bits: int) -> int:
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        parts = [getattr(tensor, name) for name in names]
        return sum(_bytes(part, bits) for part in parts if _is_read(part, tensor))
    is_whole = tensor.is_floating_point() and tensor.element_size() > 1
    return tensor.numel() * (8 * tensor.element_size() if is_whole else bits) // 8


def _is_read(part: torch.Tensor, weight: torch.Tensor) -> bool:
    return part.is_floating_point() or part.numel() == weight.numel()


def openvino_call(module: nn.Module, x: torch.Tensor, bits: int, threads: int) -> Callable[[], Any]:
    """OpenVINO's layers, of weights that nncf compresses."""
    import nncf
    import openvino

    converted = openvino.convert_model(module, example_input=x)
    converted.reshape(list(x.shape))
    if bits == 4:
        mode = nncf.CompressWeightsMode.INT4_SYM
        converted = nncf.compress_weights(
            converted, mode=mode, group_size=GROUP, ratio=1.0, all_layers=True
        )
    else:
        converted = nncf.compress_weights(converted, mode=nncf.CompressWeightsMode.INT8_SYM)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    request = openvino.compile_model(converted, "CPU", settings).create_infer_request()
    request.set_input_tensor(openvino.Tensor(x.numpy(), shared_memory=True))
    run: Callable[[], Any] = request.infer
    return run


def onnxruntime_call(
    module: nn.Module, x: torch.Tensor, bits: int, threads: int
) -> Callable[[], Any]:
    """ONNX Runtime's MatMulNBits on random weights of the same sizes, which makes bytes of rows."""
    import numpy as np
    import onnx
    import onnxruntime

    random = np.random.default_rng(0)
    nodes, constants, results = [], [], []
    for number, weight in enumerate(module.parameters()):
        columns, terms = weight.shape
        blocks = terms // GROUP
        packed = random.integers(0, 256, (columns, blocks, GROUP * bits // 8), np.uint8)
        scales = (random.random(columns * blocks) * 0.01).astype(np.float32)
        constants += [
            onnx.numpy_helper.from_array(packed, f"weight{number}"),
            onnx.numpy_helper.from_array(scales, f"scales{number}"),
        ]
        nodes.append(
            onnx.helper.make_node(
                "MatMulNBits",
                ["x", f"weight{number}", f"scales{number}"],
                [f"result{number}"],
                domain="com.microsoft",
                K=terms,
                N=columns,
                bits=bits,
                block_size=GROUP,
                accuracy_level=4,
            )
        )
        results.append(
            onnx.helper.make_tensor_value_info(
                f"result{number}", onnx.TensorProto.FLOAT, [len(x), columns]
            )
        )
    given = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, list(x.shape))
    graph = onnx.helper.make_graph(nodes, "layers", [given], results, constants)
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(
        onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString(),
        settings,
    )
    values = {"x": x.numpy()}
    return lambda: session.run(None, values)


def measure(
    size: tuple[int, int], rows: int, kind: str, dtype: torch.dtype, options: argparse.Namespace
) -> str:
    """A row of the table."""
    columns, terms = size
    plain = layers(columns, terms, options.layers, dtype, None)
    model = layers(columns, terms, options.layers, dtype, kind)
    x = torch.randn(rows, terms).to(dtype)
    bits = 4 if kind.startswith("int4") else 8
    bytes_read = weight_bytes(model, bits)
    buffer = torch.ones(max(1, bytes_read // 4))

    def through(
        module: nn.Module, backend: str | None, given: dict[str, str] | None = None
    ) -> Callable[[], object]:
        torch._dynamo.reset()
        call = module
        if backend is not None:
            call = torch.compile(module, backend=backend, dynamic=False, options=given)
        call(x)
        return lambda: call(x)

    calls = {
        "mlcc": through(model, "mlcc", {"activations": options.activations}),
        "float": through(plain, "mlcc"),
        "eager": through(model, None),
        "read": lambda: buffer.sum(),
    }
    if options.inductor:
        calls["inductor"] = through(model, "inductor")
    if options.openvino:
        calls["openvino"] = openvino_call(plain, x, bits, options.threads)
    if options.onnxruntime:
        calls["onnxruntime"] = onnxruntime_call(plain, x, bits, options.threads)
    found = compare(calls, seconds=options.seconds)
    seconds = {name: min(found.seconds[name]) for name in calls}
    share = seconds["read"] / seconds["mlcc"]
    ratios = [
        f"{seconds[peer] / seconds['mlcc']:9.2f}" for peer in calls if peer not in ("mlcc", "read")
    ]
    return (
        f"{kind:10s} {rows:5d} {columns:6d} {terms:6d} {seconds['mlcc'] * 1e3:8.2f} "
        f"{bytes_read / seconds['mlcc'] / 1e9:6.1f} {share:6.2f} {' '.join(ratios)}"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", default="1,4,32,128")
    parser.add_argument("--sizes", default="2048x2048,1984x1984,5632x2048")
    parser.add_argument("--kinds", default="int8,int4")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--inductor", action="store_true")
    parser.add_argument("--activations", default="", help="int8: mlcc makes bytes of rows")
    parser.add_argument("--openvino", action="store_true")
    parser.add_argument("--onnxruntime", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    dtype = getattr(torch, options.dtype)
    peers = ["float", "eager"]
    peers += [peer for peer in ("inductor", "openvino", "onnxruntime") if getattr(options, peer)]
    over = " ".join(f"/{peer[:8]:>8s}" for peer in peers)
    print(
        f"{'kind':10s} {'rows':>5s} {'N':>6s} {'K':>6s} {'ms':>8s} {'GB/s':>6s} {'share':>6s} {over}"
    )
    with torch.no_grad():
        for kind in options.kinds.split(","):
            for size in options.sizes.split(","):
                columns, terms = map(int, size.split("x"))
                for rows in map(int, options.rows.split(",")):
                    print(measure((columns, terms), rows, kind, dtype, options), flush=True)


if __name__ == "__main__":
    main()
