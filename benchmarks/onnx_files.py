"""Files of ONNX beside ONNX Runtime: results at three sizes, speed and load times of the JIT and of packages.

usage: python benchmarks/onnx_files.py FOLDER_OR_WHEEL... [--files TEXT] [--quantize none|dynamic|static|nbits]
           [--ways eager,jit,compile,package] [--seconds S] [--cpu-time] [--fresh]

Takes every .onnx file below the folders, or in the wheels; nothing is downloaded. With `--quantize`, the files that
onnxruntime.quantization makes of them. Each file has a process of its own and one thread. A row tells, for each way, at
how many of the sizes the results are ONNX Runtime's (or the error), ONNX Runtime's time through that of the way at the
middle size, in turns, and milliseconds until it is ready: for ONNX Runtime a session, for `jit` and `compile` the first
call, for `package` the file being opened. Results are appended to build/onnx-files.jsonl, so a run that was stopped
goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

WAYS = ("eager", "jit", "compile", "package")
QUANTIZATIONS = ("none", "dynamic", "static", "nbits")
LIMIT = {"none": 1e-3}  # largest error as a share of the largest value
LEAST = (
    1e-3  # of these largest values: ONNX Runtime's sigmoid is off by 1e-7, however small its result
)
LIMIT_OF_QUANTIZED = 5e-2  # a value at the edge of a step may be rounded to the other side
SECONDS_OF_ONE = 1200


@dataclass(frozen=True)
class Inputs:
    """What a file is called with, by parts of its path: shapes with letters for what varies, three values of each."""

    path: str
    shapes: dict[str, tuple[int | str, ...]]
    sizes: tuple[dict[str, int], ...] = ({},)
    numbers: tuple[tuple[str, float], ...] = ()  # inputs that are one number


def _each(letter: str, *values: int) -> tuple[dict[str, int], ...]:
    return tuple({letter: value} for value in values)


_IMAGES = ({"h": 64, "w": 96}, {"h": 192, "w": 320}, {"h": 320, "w": 640})
_STATE = (2, "n", 128)
_RATE = (("sr", 16000),)
KNOWN = (
    Inputs(
        "basic_pitch", {"serving_default_input_2:0": ("n", 43844, 1)}, _each("n", 1, 2, 3)
    ),
    Inputs("magika", {"bytes": ("n", 2048)}, _each("n", 1, 2, 5)),
    Inputs("nsnet2-20ms-48k", {"input": (1, "t", 513)}, _each("t", 20, 100, 250)),
    Inputs("nsnet2-20ms", {"input": (1, "t", 161)}, _each("t", 20, 100, 250)),
    Inputs("nudenet", {"images": ("n", 3, 320, 320)}, _each("n", 1, 2, 3)),
    Inputs("nakdimon", {"input_1": ("n", "t")}, ({"n": 1, "t": 20}, {"n": 2, "t": 50}, {"n": 3, "t": 90})),
    Inputs(
        "tashkeel",
        {"char_inputs": (1, "t"), "diac_inputs": (1, "t"), "input_lengths": (1,)},
        _each("t", 20, 50, 90),
    ),
    Inputs("_det_", {"x": (1, 3, "h", "w")}, _IMAGES),
    Inputs("_rec_", {"x": (1, 3, 48, "w")}, _each("w", 96, 160, 320)),
    Inputs("_cls_", {"x": ("n", 3, 48, 192)}, _each("n", 1, 2, 6)),
    Inputs("silero_vad_16k_sequence", {"input": ("t", 576), "h": (1, 1, 128), "c": (1, 1, 128)}, _each("t", 2, 5, 20)),
    Inputs("silero_vad_openvino", {"input": (1, 576), "state": (2, 1, 128)}),
    Inputs("silero_vad_half", {"input": ("n", 576), "state": _STATE}, _each("n", 1, 2, 5)),
    Inputs("silero_vad", {"input": ("n", 576), "state": _STATE, "sr": ()}, _each("n", 1, 2, 5), numbers=_RATE),
    Inputs("aecmos_models/Run_1668", {"input": (1, 3, "t", 160), "h0": (4, 1, 96)}, _each("t", 50, 100, 200)),
    Inputs("aecmos_models", {"input": (1, 3, "t", 160), "h0": (4, 1, 64)}, _each("t", 50, 100, 200)),
    Inputs("model_v8", {"input_1": ("n", 900, 120)}, _each("n", 1, 2, 3)),
    Inputs("sig_bak_ovr", {"input_1": ("n", 144160)}, _each("n", 1, 2, 3)),
    Inputs("dnsmos_models", {"input_1": ("n", 901, 161)}, _each("n", 1, 2, 3)),
    Inputs("plcmos", {"degraded_audio": (1, 1, "t", 257), "rater_embed": (1, 64)}, _each("t", 50, 100, 200)),
    Inputs("swift_f0", {"audio": (1, "t"), "fmin": (), "fmax": ()}, _each("t", 4000, 16000, 40000),
           numbers=(("fmin", 46.875), ("fmax", 2093.75))),
)  # fmt: skip


def main() -> int:
    """Measure what was asked for; the exit status is 1 if something failed."""
    arguments = _parse_arguments()
    if arguments.one:
        print(json.dumps(measure(Path(arguments.one), arguments)))
        return 0
    store = Store(ROOT / "build" / "onnx-files.jsonl", arguments.fresh)
    tasks = []
    with tempfile.TemporaryDirectory() as folder:
        for path in _files(arguments.places, Path(folder)):
            if arguments.files not in str(path):
                continue
            name = f"{path.parent.name}/{path.name}"
            task = (name, arguments.quantize, ",".join(arguments.ways))
            if store.get(task) is None:
                store.append(task, _measure_apart(path, arguments))
            tasks.append(task)
            print("\n".join(_rows(name, store[task])), flush=True)
    for way in arguments.ways:
        found = [store[task].get("ways", {}).get(way, {}) for task in tasks]
        ratios = [entry["ratio"] for entry in found if "ratio" in entry]
        right = sum(entry.get("right", 0) == entry.get("sizes", -1) for entry in found)
        print(f"{way}: {right} of {len(tasks)} files right at all sizes", end="")
        print(f", {_geomean(ratios):.2f} of ONNX Runtime's speed" if ratios else "")
    return int(any(_is_wrong(store[task]) for task in tasks))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("places", nargs="*", type=Path, help="folders and wheels")
    parser.add_argument("--files", default="", help="only those with this text in their path")
    parser.add_argument("--quantize", choices=QUANTIZATIONS, default="none", help="files made so")
    parser.add_argument(
        "--ways", type=names_among(WAYS), default=["eager", "jit", "package"], help="only these"
    )
    parser.add_argument("--seconds", type=float, default=3.0, help="for one comparison")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine with other work")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    return parser.parse_args()


def _files(places: list[Path], folder: Path) -> Iterator[Path]:
    for place in places:
        if place.suffix == ".whl":
            with zipfile.ZipFile(place) as wheel:
                for name in wheel.namelist():
                    if name.endswith((".onnx", ".onnx.data")):
                        wheel.extract(name, folder / place.stem)
            place = folder / place.stem
        yield from sorted(place.rglob("*.onnx"))


def _measure_apart(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", str(path), "--seconds", str(arguments.seconds)]
    command += ["--quantize", arguments.quantize, "--ways", ",".join(arguments.ways)]
    command += ["--cpu-time"] if arguments.cpu_time else []
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_OF_ONE)
    except subprocess.TimeoutExpired:
        return {"reason": f"more than {SECONDS_OF_ONE} s"}
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        return {"reason": next((one for one in reversed(lines) if "Error" in one), "")[:300]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _is_wrong(record: Mapping[str, Any]) -> bool:
    return "reason" in record or any(
        entry.get("right") != entry.get("sizes") for entry in record["ways"].values()
    )


def _rows(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    if "reason" in record:
        yield f"{name}: FAILED: {record['reason']}"
        return
    yield f"{name}: load {record['load_ms']:.0f} ms, ONNX Runtime {record['peer_load_ms']:.0f} ms"
    for way, entry in record["ways"].items():
        text = f"  {way:8s} {entry.get('right', 0)} of {entry.get('sizes', 0)} right"
        if "error" in entry:
            text += f", error {entry['error']:.1e}"
        if "ratio" in entry:
            text += f", {entry['ratio']:.2f} of ONNX Runtime's speed ({entry['peer_ms']:.2f} ms)"
        if "ready_ms" in entry:
            text += f", ready in {entry['ready_ms']:.1f} ms"
        yield text + (f", {entry['note']}" if "note" in entry else "")


def _geomean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def measure(path: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    """Of one file: what a row tells."""
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        known = next((one for one in KNOWN if one.path in str(path)), None)
        if arguments.quantize != "none":
            path = _quantized(path, known, arguments.quantize, Path(folder))
        return _File(path, known, arguments, Path(folder)).record()


class _File:
    def __init__(
        self, path: Path, known: Inputs | None, arguments: argparse.Namespace, folder: Path
    ) -> None:
        import mlcc

        self.arguments, self.folder = arguments, folder
        start = time.perf_counter()
        self.session = _session(path)
        self.peer_load = time.perf_counter() - start
        start = time.perf_counter()
        self.model = mlcc.onnx.load(path)
        self.load = time.perf_counter() - start
        self.known = known or _guessed(self.session)
        self.feeds = [_feeds(self.session, self.known, sizes) for sizes in self.known.sizes]
        self.expected = [self.session.run(None, feed) for feed in self.feeds]
        self.middle = self.feeds[len(self.feeds) // 2]

    def record(self) -> dict[str, Any]:
        record: dict[str, Any] = {
            "load_ms": 1e3 * self.load,
            "peer_load_ms": 1e3 * self.peer_load,
            "ways": {},
        }
        for way in self.arguments.ways:
            entry: dict[str, Any] = {"right": 0, "sizes": len(self.feeds)}
            record["ways"][way] = entry
            try:
                call = getattr(self, way)(entry)
                self._compare(call, entry)
                if way != "eager":
                    self._time(call, entry)
            except Exception as error:
                entry["note"] = _in_short(error)
        return record

    def eager(self, entry: dict[str, Any]) -> Callable[..., Any]:
        return self._of_tensors(self.model)

    def jit(self, entry: dict[str, Any]) -> Callable[..., Any]:
        import mlcc

        return self._first(self._of_tensors(mlcc.jit(self.model)), entry)

    def compile(self, entry: dict[str, Any]) -> Callable[..., Any]:
        import torch

        return self._first(self._of_tensors(torch.compile(self.model, backend="mlcc")), entry)

    def package(self, entry: dict[str, Any]) -> Callable[..., Any]:
        """For ranges of sizes; where sizes are fixed by the model, a package of each size."""
        import torch

        import mlcc

        paths = [self.folder / f"{i}.mlcc" for i in range(len(self.feeds))]
        given = self._tensors(self.middle)
        letters = {letter for sizes in self.known.sizes for letter in sizes}
        dynamic = torch.export.Dim.DYNAMIC
        shapes = tuple(
            {i: dynamic for i, c in enumerate(self.known.shapes[name]) if c in letters} or None
            for name in self.model.input_names
        )
        start = time.perf_counter()
        try:
            mlcc.export(self.model, given, paths[0], dynamic_shapes=shapes if letters else None)
            paths = paths[:1] * len(paths)
        except Exception as error:
            if not letters:
                raise
            entry["note"] = f"fixed sizes, since {_in_short(error)}"
            for path, feed in zip(paths, self.feeds, strict=True):
                mlcc.export(self.model, self._tensors(feed), path)
        entry["export_ms"] = 1e3 * (time.perf_counter() - start)
        start = time.perf_counter()
        models = [mlcc.runtime.load(path) for path in paths]
        entry["ready_ms"] = 1e3 * (time.perf_counter() - start) / len(models)
        arrays = [
            [x.numpy() if isinstance(x, torch.Tensor) else x for x in self._tensors(feed)]
            for feed in self.feeds
        ]

        def call(feed: Mapping[str, Any]) -> Any:
            place = next(i for i, one in enumerate(self.feeds) if one is feed)
            return models[place](*arrays[place])

        return call

    def _tensors(self, feed: Mapping[str, Any]) -> tuple[Any, ...]:
        import torch

        numbers = [name for name, _ in self.known.numbers]
        return tuple(
            feed[name].item() if name in numbers else torch.from_numpy(feed[name])
            for name in self.model.input_names
        )

    def _of_tensors(self, function: Callable[..., Any]) -> Callable[..., Any]:
        given = {id(feed): self._tensors(feed) for feed in self.feeds}
        return lambda feed: function(*given[id(feed)])

    def _first(self, call: Callable[..., Any], entry: dict[str, Any]) -> Callable[..., Any]:
        start = time.perf_counter()
        call(self.middle)
        entry["ready_ms"] = 1e3 * (time.perf_counter() - start)
        return call

    def _compare(self, call: Callable[..., Any], entry: dict[str, Any]) -> None:
        limit = LIMIT.get(self.arguments.quantize, LIMIT_OF_QUANTIZED)
        errors = []
        for feed, expected in zip(self.feeds, self.expected, strict=True):
            found = call(feed)
            found = found if isinstance(found, (tuple, list)) else (found,)
            errors.append(max(_error(a, b) for a, b in zip(found, expected, strict=True)))
        entry["right"] = sum(error <= limit for error in errors)
        entry["error"] = max(errors)

    def _time(self, call: Callable[..., Any], entry: dict[str, Any]) -> None:
        from benchmarks.harness import compare

        functions = {
            "peer": lambda: self.session.run(None, self.middle),
            "own": lambda: call(self.middle),
        }
        clock = time.process_time if self.arguments.cpu_time else time.perf_counter
        comparison = compare(functions, seconds=self.arguments.seconds, clock=clock)
        entry["ratio"] = comparison.ratio("own").median
        entry["peer_ms"] = 1e3 * comparison.spread("peer").median


def _in_short(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {' '.join(lines[:2])}"[:300]


def _session(path: Path) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    settings.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])


def _guessed(session: Any) -> Inputs:
    """For a file that is not in the table: what varies is 2."""
    shapes: dict[str, tuple[int | str, ...]] = {
        one.name: tuple(size if isinstance(size, int) else 2 for size in one.shape)
        for one in session.get_inputs()
    }
    return Inputs("", shapes)


def _feeds(session: Any, known: Inputs, sizes: Mapping[str, int]) -> dict[str, Any]:
    import numpy as np

    random = np.random.default_rng(0)
    numbers, feeds = dict(known.numbers), {}
    for one in session.get_inputs():
        shape = [sizes[s] if isinstance(s, str) else s for s in known.shapes[one.name]]
        if one.name in numbers:
            value = np.full(shape, numbers[one.name])
        elif one.name == "input_lengths":
            value = np.full(shape, sizes["t"])
        elif one.type in ("tensor(int64)", "tensor(int32)") or (
            one.name == "input_1" and len(shape) == 2 and "t" in sizes
        ):
            value = random.integers(1, 15, shape)
        else:
            value = 0.5 * random.standard_normal(shape)
        feeds[one.name] = value.astype(_NUMPY[one.type])
    return feeds


_NUMPY = {
    "tensor(float)": "float32",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(bool)": "bool",
}


def _error(found: Any, expected: Any) -> float:
    """The largest error as a share of the largest value."""
    import numpy as np

    found = np.asarray(found)
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return math.inf
    if not expected.size:
        return 0.0
    a, b = found.astype(np.float64), expected.astype(np.float64)
    largest = max(float(np.abs(b).max()), LEAST)
    return float(np.nan_to_num(np.abs(a - b), nan=math.inf).max()) / largest


def _quantized(path: Path, known: Inputs | None, kind: str, folder: Path) -> Path:
    """The file that ONNX Runtime's tools make of this one."""
    from onnxruntime import quantization

    target = folder / f"{path.parent.name}-{kind}-{path.name}"
    if kind == "dynamic":
        quantization.quantize_dynamic(path, target)
        return target
    if kind == "static":
        session = _session(path)
        inputs = known or _guessed(session)
        feeds = iter([_feeds(session, inputs, sizes) for sizes in inputs.sizes])

        class Reader(quantization.CalibrationDataReader):
            def get_next(self) -> Any:
                return next(feeds, None)

        quantization.quantize_static(path, target, Reader())
        return target
    import onnx
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(path), block_size=32, is_symmetric=True)
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))
    return target


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
