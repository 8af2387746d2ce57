"""`mlcc export`, `inspect`, `run` and `bench` for packages and models of ONNX."""

from __future__ import annotations

import argparse
import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy

from mlcc._errors import Error
from mlcc.opened_models import (
    OnnxFile,
    OpenedModel,
    PackageFile,
    in_words,
    is_package,
    made_up,
    open_model,
    read_arrays,
    size_at,
    sizes_of,
)

# docs/package_format.md
_HEADER = struct.Struct("<8sIIQII16s")
_SECTION = struct.Struct("<IIQQ16s")
_PARTS = {1: "manifest", 2: "plan", 3: "code", 4: "weights", 5: "targets", 6: "recipes"}


def is_model(argv: Sequence[str]) -> bool:
    """Whether the first of the arguments names a package or a model of ONNX."""
    first = argv[0] if argv else ""
    return not first.startswith("-") and (
        first.endswith((".mlcc", ".onnx")) or (Path(first).is_file() and is_package(first))
    )


# ---- export ----------------------------------------------------------------------------------------------------


def add_export(commands: Any) -> None:
    """The parser of `mlcc export`."""
    parser = commands.add_parser("export", help="a package of an .onnx or .pt2 file (mlcc.export)")
    parser.add_argument("model", help="a model of ONNX, or what torch.export.save wrote")
    parser.add_argument("package", help="the file to be written")
    _add_pairs(
        parser,
        "--size",
        "NAME=SIZE | NAME=MIN:MAX[:USUAL]",
        "a size that the model leaves open: a number, or the range in which it may vary",
    )
    _add_pairs(parser, "--constant", "NAME=NUMBER", "an input of ONNX that is always this number")
    parser.add_argument("--target", default="native", help="the CPU that code is made for")
    parser.add_argument(
        "--threads", type=int, default=1, help="that kernels are cut into parts for"
    )
    parser.add_argument(
        "--format", default="package", help="package, or bundle: an object file and a header"
    )
    parser.add_argument(
        "--refit", action="store_true", help="programs may exchange the weights of the package"
    )
    parser.add_argument(
        "--no-check", action="store_true", help="do not run the package beside the model"
    )
    parser.set_defaults(run=run_export)


def run_export(arguments: argparse.Namespace) -> int:
    """Write a package of a model's file and print what it is."""
    path = Path(arguments.model)
    if not path.is_file():
        raise Error(f"{path}: no such file")
    from mlcc.packages.export import export

    options = {
        "target": arguments.target,
        "threads": arguments.threads,
        "format": arguments.format,
        "refit": arguments.refit,
        "check": not arguments.no_check,
    }
    try:
        if path.suffix == ".onnx":
            module, args, kwargs, shapes = _onnx_program(path, arguments)
            told = export(
                module, args, arguments.package, kwargs=kwargs, dynamic_shapes=shapes, **options
            )
        else:
            program, args, kwargs = _saved_program(path, arguments)
            told = export(program, args, arguments.package, kwargs=kwargs, **options)
    except Error:
        raise
    except (RuntimeError, ValueError, TypeError, OSError) as error:
        raise Error(f"export: {type(error).__name__}: {error}") from error
    print(told)
    return 0


def _add_pairs(parser: argparse.ArgumentParser, option: str, form: str, meaning: str) -> None:
    """An option that may be given several times, which `_pairs` reads."""
    parser.add_argument(option, action="append", default=[], metavar=form, help=meaning)


def _saved_program(path: Path, arguments: argparse.Namespace) -> Any:
    import torch

    if arguments.size or arguments.constant:
        raise Error("export: --size and --constant are for models of ONNX; a .pt2 has its sizes")
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise Error(f"{path}: neither a model of ONNX nor one of torch.export.save") from error
    if program.example_inputs is None:
        raise Error(f"{path}: it has no example inputs, which the check needs")
    args, kwargs = program.example_inputs
    return program, args, kwargs


def _onnx_program(path: Path, arguments: argparse.Namespace) -> Any:
    """The module with arguments to export it for: args, kwargs, dynamic_shapes."""
    from torch.export import Dim

    model = OnnxFile(path, threads=1)
    told = _pairs(arguments.size, "--size")
    constants = {
        name: _number(text, f"--constant {name}")
        for name, text in _pairs(arguments.constant, "--constant").items()
    }
    strange = set(constants) - {one.name for one in model.inputs}
    if strange:
        raise Error(f"export: the model has no input {sorted(strange)[0]}")
    inputs = [one for one in model.inputs if one.name not in constants]
    names = {text for one in inputs for text in one.sizes if not text.isdigit()}
    _check_names(told, names)
    dims: dict[str, Any] = {}
    usual: dict[str, int] = {}
    for name, text in told.items():
        low, high, usual[name] = _range(name, text)
        if low != high:
            dims[name] = Dim(name, min=low, max=high)
    tensors = dict(
        zip(
            (one.name for one in inputs),
            OnnxFile.as_tensors(inputs, made_up(inputs, usual, seed=0)),
            strict=True,
        )
    )
    shapes: dict[str, Any] = {
        one.name: {number: dims[text] for number, text in enumerate(one.sizes) if text in dims}
        for one in inputs
    }
    parameters = model.module.parameter_names
    args = tuple(constants.get(one.name, tensors.get(one.name)) for one in model.inputs)
    dynamic = {
        parameter: shapes.get(one.name)
        for parameter, one in zip(parameters, model.inputs, strict=True)
    }
    return model.module, args, {}, dynamic if dims else None


def _check_names(told: Mapping[str, str], names: set[str]) -> None:
    strange = sorted(set(told) - names)
    open_sizes = ", ".join(sorted(names)) or "none"
    if strange:
        raise Error(
            f"export: the model leaves no size {strange[0]} open; those that are: {open_sizes}"
        )
    missing = sorted(names - set(told))
    if missing:
        raise Error(
            f"export: the model leaves these sizes open: {', '.join(missing)}\n"
            f"  remedy: --size {missing[0]}=1, or --size {missing[0]}=1:64 for a range"
        )


def _range(name: str, text: str) -> tuple[int, int, int]:
    """Least, greatest and usual size."""
    parts = text.split(":")
    if not all(part.isdigit() for part in parts) or len(parts) > 3:
        raise Error(f"--size {name}: found {text}, expected SIZE, MIN:MAX or MIN:MAX:USUAL")
    low, high = int(parts[0]), int(parts[min(1, len(parts) - 1)])
    # torch.export takes a size of one for a constant.
    middle = max(round(math.sqrt(low * high)), 2) if low != high else low
    usual = int(parts[2]) if len(parts) == 3 else min(middle, high)
    if not low <= usual <= high or (low != high and usual < 2):
        raise Error(
            f"--size {name}: found {text}, expected MIN <= USUAL <= MAX and USUAL at least 2"
        )
    return low, high, usual


def _pairs(texts: Sequence[str], option: str) -> dict[str, str]:
    found = {}
    for text in texts:
        name, equal, value = text.partition("=")
        if not equal or not name or not value:
            raise Error(f"{option}: found {text!r}, expected NAME=VALUE")
        found[name] = value
    return found


def _number(text: str, what: str) -> int | float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise Error(f"{what}: found {text!r}, expected a number")


# ---- inspect ---------------------------------------------------------------------------------------------------


def add_inspect(commands: Any) -> None:
    """The parser of `mlcc inspect`."""
    parser = commands.add_parser("inspect", help="what a package or a model of ONNX says of itself")
    parser.add_argument("path", help="the file; packages only from whom you trust")
    parser.add_argument(
        "--manifest", action="store_true", help="a package's manifest as JSON alone"
    )
    parser.set_defaults(run=run_inspect)


def run_inspect(arguments: argparse.Namespace) -> int:
    """Print what a file says of itself: what it takes and gives, its parts and kernels, or its ops."""
    model = open_model(arguments.path, threads=1)
    if arguments.manifest:
        if not isinstance(model, PackageFile):
            raise Error(f"{arguments.path}: a model of ONNX has no manifest")
        import json

        print(json.dumps(model.manifest, indent=1))
        return 0
    size = Path(arguments.path).stat().st_size
    rows: list[tuple[str, Any]] = [("file", f"{arguments.path}, {size:,} bytes")]
    if isinstance(model, PackageFile):
        rows += _package_rows(model, arguments.path)
    else:
        assert isinstance(model, OnnxFile)
        rows += _onnx_rows(model)
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")
    if isinstance(model, PackageFile):
        _print_kernels(model.manifest["kernels"])
    return 0


def _package_rows(model: PackageFile, path: str) -> list[tuple[str, Any]]:
    manifest = model.manifest
    inputs, outputs = model.infos
    return [
        ("made by", f"mlcc {manifest['mlcc']}, torch {manifest['torch']}"),
        ("cpu", manifest["target"]["cpu"]),
        ("threads", manifest["threads"]),
        *[(f"size {name}", ends) for name, ends in model.ranges.items()],
        *[("input", _port_in_words(info)) for info in inputs],
        *[("output", _port_in_words(info)) for info in outputs],
        ("arena", f"{manifest['arena_bytes']:,} bytes for the sizes it was exported with"),
        ("stack", f"{manifest['stack_bytes']:,} bytes on each thread, for kernels"),
        *[(f"bytes of {part}", f"{size:,}") for part, size in sections(path)],
    ]


def _port_in_words(info: Any) -> str:
    return f"{info.name}: {info.dtype} [{', '.join(info.size_texts)}]"


def sections(path: str | Path) -> list[tuple[str, int]]:
    """Names and bytes of the parts of a package that can be opened, in the order of the file."""
    with open(path, "rb") as file:
        count = _HEADER.unpack(file.read(_HEADER.size))[4]
        found = [_SECTION.unpack(file.read(_SECTION.size)) for _ in range(count)]
    found.sort(key=lambda entry: entry[2])
    return [(_PARTS.get(kind, f"section {kind}"), size) for kind, _, _, size, _ in found]


def _print_kernels(kernels: Sequence[Any]) -> None:
    """A table; files of before it was kept have names alone."""
    rows = [one if isinstance(one, dict) else {"name": one} for one in kernels]
    width = max((len(row["name"]) for row in rows), default=6)
    print(f"\n{'kernel':<{width}}  {'Mflop':>9}  {'MB':>9}  line")
    for row in rows:
        flops, moved = row.get("flops"), row.get("bytes")
        cells = ["?" if value is None else f"{value / 1e6:.4g}" for value in (flops, moved)]
        print(
            f"{row['name']:<{width}}  {cells[0]:>9}  {cells[1]:>9}  {row.get('line', '')}".rstrip()
        )
    sums = [sum(row.get(key) or 0 for row in rows) / 1e6 for key in ("flops", "bytes")]
    print(f"{f'{len(rows)} kernels':<{width}}  {sums[0]:>9.4g}  {sums[1]:>9.4g}")


def _onnx_rows(model: OnnxFile) -> list[tuple[str, Any]]:
    proto = model.proto
    made = f"{proto.producer_name} {proto.producer_version}".strip() or "unknown"
    opsets = ", ".join(f"{one.domain or 'ai.onnx'} {one.version}" for one in proto.opset_import)
    tensors = [*model.module.parameters(), *model.module.buffers()]
    ops = Counter(node.op_type for node in proto.graph.node)
    return [
        ("made by", made),
        ("opsets", opsets),
        *[("input", f"{one.name}: {one.dtype} [{', '.join(one.sizes)}]") for one in model.inputs],
        *[("output", name) for name in model.outputs],
        ("bytes of weights", f"{sum(value.nbytes for value in tensors):,}"),
        *[("op", f"{name}, {count} times") for name, count in ops.most_common()],
    ]


# ---- run and bench ---------------------------------------------------------------------------------------------


def run_model(argv: Sequence[str]) -> int:
    """`mlcc run FILE`: run it once and print what comes out."""
    parser = _call_parser("run", "runs a package or a model of ONNX once")
    parser.add_argument("--outputs", help="an .npz file that is written")
    arguments = parser.parse_args(argv)
    model, given = _opened(arguments)
    results = model.call(given)
    names = _distinct(model.outputs, len(results))
    for name, result in zip(names, results, strict=True):
        print(in_words(name, result))
    if arguments.outputs:
        try:
            numpy.savez(arguments.outputs, **dict(zip(names, results, strict=True)))
        except OSError as error:
            raise Error(f"{arguments.outputs}: {error.strerror}") from None
    return 0


def bench_model(argv: Sequence[str]) -> int:
    """`mlcc bench FILE`: how long a call takes, beside ONNX Runtime where that is installed and runs the file."""
    parser = _call_parser("bench", "times a package or a model of ONNX")
    parser.add_argument("--seconds", type=float, default=3.0, help="of measuring (default 3)")
    arguments = parser.parse_args(argv)
    model, given = _opened(arguments)
    calls: dict[str, Callable[[], Any]] = {
        "mlcc": model.caller(given) if isinstance(model, OnnxFile) else lambda: model.call(given)
    }
    if isinstance(model, OnnxFile):
        other = _onnx_runtime(arguments.path, model, given, arguments.threads)
        if other is not None:
            calls["ONNX Runtime"] = other
    times = _in_turns(calls, arguments.seconds)
    for name, values in times.items():
        print(
            f"{name}: {median(values) * 1e3:.3f} ms a call (median of {len(values)},"
            f" least {min(values) * 1e3:.3f})"
        )
    if len(times) == 2:
        ratio = median(times["ONNX Runtime"]) / median(times["mlcc"])
        print(f"ONNX Runtime takes {ratio:.2f} times as long")
    return 0


def _call_parser(command: str, description: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"mlcc {command}", description=description)
    parser.add_argument(
        "path", help="a package or an .onnx file; packages only from whom you trust"
    )
    parser.add_argument("--inputs", help="an .npz file, arrays named as the inputs or by numbers")
    _add_pairs(parser, "--size", "NAME=SIZE", "of inputs that are made up")
    parser.add_argument("--seed", type=int, default=0, help="of inputs that are made up")
    parser.add_argument("--threads", type=int, default=1, help="that a call uses (default 1)")
    return parser


def _opened(arguments: argparse.Namespace) -> tuple[OpenedModel, list[Any]]:
    """The model and its inputs."""
    if arguments.threads < 1:
        raise Error(f"--threads: found {arguments.threads}, expected at least 1")
    model = open_model(arguments.path, arguments.threads)
    if arguments.inputs:
        return model, read_arrays(model, arguments.inputs)
    told = {}
    for name, text in _pairs(arguments.size, "--size").items():
        if not text.isdigit():
            raise Error(f"--size {name}: found {text}, expected a number")
        told[name] = int(text)
    sizes = sizes_of(model, told)
    for name, size in sizes.items():
        print(f"size {name}: {size}")
    for one in model.inputs:
        shape = ", ".join(str(size_at(text, sizes)) for text in one.sizes)
        print(f"input {one.name}: {one.dtype} [{shape}], made up")
    return model, made_up(model.inputs, sizes, arguments.seed)


def _distinct(names: Sequence[str], count: int) -> list[str]:
    named = list(names[:count])
    is_usable = len(named) == count == len(set(named)) and "file" not in named
    return named if is_usable else [f"output{number}" for number in range(count)]


def _onnx_runtime(
    path: str, model: OnnxFile, given: Sequence[Any], threads: int
) -> Callable[[], Any] | None:
    """A call of ONNX Runtime with the same arrays; None where it is not installed or refuses the model."""
    try:
        import onnxruntime
    except ImportError:
        print("ONNX Runtime is not installed: mlcc alone")
        return None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    arrays = {one.name: array for one, array in zip(model.inputs, given, strict=True)}
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        session.run(None, arrays)
    except Exception as error:  # it has its own classes, derived from Exception
        print(f"ONNX Runtime refuses the model: {str(error).splitlines()[0]}")
        return None
    return lambda: session.run(None, arrays)


def _in_turns(calls: Mapping[str, Callable[[], Any]], seconds: float) -> dict[str, list[float]]:
    for call in calls.values():
        for _ in range(3):
            call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(times.values()))) < 5:
        for name, call in calls.items():
            begin = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - begin)
    return times
