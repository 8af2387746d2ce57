"""Packages beside ONNX Runtime, IREE and AOTInductor: how long a file takes to open and to run, on one thread.

usage: python benchmarks/packages.py [--nets REGEX] [--peers REGEX] [--seconds N] [--aot-inductor] [--json FILE]

Peers that are not installed are left out: `onnxruntime` and `onnxscript`; `iree-base-compiler` and `iree-base-runtime`.
AOTInductor needs g++ and minutes, so it is asked for. Files lie in the page cache. "open" is until a call can be made,
"and run" until the first result is there. Steady calls run in turns (harness.py); the ratios are other times through
the package's: above 1 the package is faster. Results are compared with eager's.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
from torch import Tensor, nn

import mlcc
import mlcc.runtime
from benchmarks.contraction_nets import NETS, Net
from benchmarks.harness import Comparison, compare
from mlcc._load import load_core

_OPENS = 7
_CLOSE = 1e-3  # of the largest value of a result
_MIB = 2**20
_IREE_OPTIONS = [
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-llvmcpu-stack-allocation-limit=1048576",  # layer norms of BERT want 74 KB
]


def _mlp() -> Net:
    torch.manual_seed(0)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    return Net(nn.Sequential(*layers).eval(), (torch.randn(1, 64),))


def _net_of(name: str, size: int) -> Callable[[], Net]:
    return lambda: NETS[name].build(1, size, NETS[name].width)


_NETS: dict[str, Callable[[], Net]] = {
    "mlp": _mlp,
    "bert": _net_of("bert", 128),
    "resnet18": _net_of("resnet18", 224),
    "resnet50": _net_of("resnet50", 224),
}


@dataclass(frozen=True)
class File:
    """What a contender made of a net: `open` gives a call of its inputs, and the call an array or a tensor."""

    path: Path
    seconds: float  # that it took to make
    open: Callable[[], Callable[[], Any]]


class _UnavailableError(Exception):
    """A peer that is not installed, or that does not take a net; the text says why."""


def _package(net: Net, folder: Path, **options: bool) -> File:
    path = folder / "net.mlcc"
    begin = time.perf_counter()
    if not path.exists():
        mlcc.export(net.module, net.inputs, path)
    arrays = [value.numpy() for value in net.inputs]

    def open_it() -> Callable[[], Any]:
        model = mlcc.runtime.load(path, **options)
        return lambda: model.run(arrays)[0]

    return File(path, time.perf_counter() - begin, open_it)


def _copied(net: Net, folder: Path) -> File:
    return _package(net, folder, copy_weights=True)


def _onnx_file(net: Net, folder: Path) -> Path:
    path = folder / "net.onnx"
    if not path.exists():
        try:
            program = torch.onnx.export(net.module, net.inputs, dynamo=True, verbose=False)
        except ImportError as error:
            raise _UnavailableError(f"torch.onnx.export: {error}") from None
        program.save(path, external_data=False)
    return path


def _onnxruntime(net: Net, folder: Path) -> File:
    try:
        import onnxruntime
    except ImportError:
        raise _UnavailableError("onnxruntime is not installed") from None
    begin = time.perf_counter()
    path = _onnx_file(net, folder)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    arrays = [value.numpy() for value in net.inputs]

    def open_it() -> Callable[[], Any]:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        given = {slot.name: one for slot, one in zip(session.get_inputs(), arrays, strict=True)}
        return lambda: session.run(None, given)[0]

    return File(path, time.perf_counter() - begin, open_it)


def _iree(net: Net, folder: Path) -> File:
    try:
        from iree import compiler, runtime
    except ImportError as error:
        raise _UnavailableError(f"iree is not installed: {error}") from None
    begin = time.perf_counter()
    text, path = folder / "net.mlir", folder / "net.vmfb"
    command = [sys.executable, "-m", "iree.compiler.tools.import_onnx"]
    subprocess.run([*command, str(_onnx_file(net, folder)), "-o", str(text)], check=True)
    try:
        compiler.compile_file(
            str(text),
            output_file=str(path),
            input_type="onnx",
            target_backends=["llvm-cpu"],
            extra_args=_IREE_OPTIONS,
        )
    except compiler.CompilerToolError as error:
        raise _UnavailableError(f"iree-compile: {str(error).splitlines()[3][:200]}") from None
    arrays = [value.numpy() for value in net.inputs]

    def open_it() -> Callable[[], Any]:
        module = runtime.load_vm_flatbuffer_file(str(path), driver="local-sync")
        name = next(name for name in module.vm_module.function_names if not name.startswith("__"))
        function = module[name.removesuffix("$async")]
        return lambda: function(*arrays).to_host()

    return File(path, time.perf_counter() - begin, open_it)


def _aot_inductor(net: Net, folder: Path) -> File:
    begin = time.perf_counter()
    path = folder / "net.pt2"
    with torch.no_grad():
        program = torch.export.export(net.module, net.inputs)
        torch._inductor.aoti_compile_and_package(program, package_path=str(path))

    def open_it() -> Callable[[], Any]:
        model = torch._inductor.aoti_load_package(str(path))
        return lambda: model(*net.inputs)

    return File(path, time.perf_counter() - begin, open_it)


_CONTENDERS: dict[str, Callable[[Net, Path], File]] = {
    "package": _package,
    "weights copied": _copied,
    "ONNX Runtime": _onnxruntime,
    "IREE": _iree,
    "AOTInductor": _aot_inductor,
}


def _first_tensor(result: Any) -> Tensor:
    while isinstance(result, list | tuple):
        result = result[0]
    return result if isinstance(result, Tensor) else torch.from_numpy(result.copy())


def _files(net: Net, folder: Path, names: list[str]) -> dict[str, File]:
    """Of the contenders that take the net."""
    expected = _first_tensor(net.module(*net.inputs))
    files: dict[str, File] = {}
    for name in names:
        try:
            file = _CONTENDERS[name](net, folder)
        except _UnavailableError as reason:
            print(f"  {name}: {reason}", flush=True)
            continue
        error = (_first_tensor(file.open()()) - expected).abs().max() / expected.abs().max()
        if not error <= _CLOSE:
            print(f"  {name}: left out, its error is {error:.1e}", flush=True)
            continue
        files[name] = file
    return files


def _open_times(files: Mapping[str, File]) -> dict[str, tuple[float, float]]:
    """Medians of the seconds until a call can be made, and until the first result is there; in turns."""
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in files}
    for _ in range(_OPENS):
        for name, file in files.items():
            gc.collect()
            begin = time.perf_counter()
            call = file.open()
            is_open = time.perf_counter()
            call()
            times[name].append((is_open - begin, time.perf_counter() - begin))
            del call
    return {
        name: (statistics.median(a for a, _ in pairs), statistics.median(b for _, b in pairs))
        for name, pairs in times.items()
    }


def _measure(name: str, contenders: list[str], seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        net = _NETS[name]()
        weights = sum(value.nbytes for value in net.module.parameters())
        print(f"{name}: {weights / _MIB:.1f} MiB of weights", flush=True)
        files = _files(net, Path(folder), contenders)
        opened = _open_times(files)
        comparison = compare(
            {one: file.open() for one, file in files.items()}, seconds=seconds, threads=1
        )
        _print(files, opened, comparison)
        return {
            "seconds_to_make": {one: file.seconds for one, file in files.items()},
            "bytes": {one: file.path.stat().st_size for one, file in files.items()},
            "weight_bytes": weights,
            "seconds_to_open": opened,
            **comparison.to_dict(),
        }


def _print(
    files: Mapping[str, File], opened: Mapping[str, tuple[float, float]], comparison: Comparison
) -> None:
    heads = ("make s", "MiB", "open ms", "and run", "a call", "open /", "call /")
    print(f"  {'':14s}" + "".join(f"{head:>10s}" for head in heads))
    base = comparison.baseline
    for name, file in files.items():
        is_open, has_run = opened[name]
        call = comparison.spread(name).median
        cells = (
            f"{file.seconds:.1f}",
            f"{file.path.stat().st_size / _MIB:.2f}",
            f"{1e3 * is_open:.2f}",
            f"{1e3 * has_run:.2f}",
            f"{1e3 * call:.3f}",
            f"{is_open / opened[base][0]:.1f}",
            f"{1 / comparison.ratio(name).median:.2f}",
        )
        print(f"  {name:14s}" + "".join(f"{cell:>10s}" for cell in cells), flush=True)


def main() -> None:
    """Print a table for each net."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nets", default="", help=f"of {', '.join(_NETS)}")
    parser.add_argument("--peers", default="", help=f"of {', '.join(_CONTENDERS)}")
    parser.add_argument("--seconds", type=float, default=10.0, help="of steady calls for each net")
    parser.add_argument("--aot-inductor", action="store_true")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    contenders = [
        name
        for name in _CONTENDERS
        if (name == "package" or re.search(arguments.peers, name))
        and (name != "AOTInductor" or arguments.aot_inductor)
    ]
    torch.set_num_threads(1)
    print(f"CPU: {load_core().cpu_info()['name']}, one thread")
    rows = {
        name: _measure(name, contenders, arguments.seconds)
        for name in _NETS
        if re.search(arguments.nets, name)
    }
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
