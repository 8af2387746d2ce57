"""The matmul sweep: x @ w.T + b by mlcc beside eager, oneDNN with packed weights, and this machine's peak.

usage: matmul.py [--sizes NxK[,NxK...]] [--ms M[,M...]] [--dtypes f32,bf16,int8] [--sample COUNT] [--seed S]
                 [--form function|module] [--threads N] [--seconds 1.0] [--clock wall|cpu] [--malloc default|kept]
                 [--json FILE] [--fresh]

A row is a shape MxNxK and a dtype. f32 and bf16 are `torch.nn.functional.linear(x, w, b)` with w and b nn.Parameters
under no_grad, by `mlcc.jit` of that function or (--form module) of a module that holds them; int8 is `torch._int_mm` of
int8 x int8 to int32. `mlcc` is the jit as users type it, whose sizes are symbols; `mlcc_static` has `dynamic=False` and
is the one that is judged. oneDNN runs what torch has of it: `mkldnn._linear_pointwise` on a weight packed for the row's
M, for int8 `onednn.qlinear_pointwise`, which is u8 x s8 to f32 and so another function, told and not judged.

Contenders take turns (benchmarks/harness.py); results are compared with eager's before. Ratios are those of whole
calls. The peak is what the arithmetic of the row's dtype reaches in a loop of multiply-adds, for M = 1 the bandwidth of
reading as many bytes as the weight has (1 to 8 streams, pages of 4 KB and huge ones), both measured by the process that
measures the row. The share of it is judged of the kernel without dispatch: mlcc's executable has no clock of its own,
so the same call is timed alone, with no other contender's weights passing through the caches, and what the same
function takes at 1x16x16 (256 multiply-adds: guards, dispatch and the result's memory, and nothing else) is taken off.

Rows of one weight share a process. Records are appended to build/matmul.jsonl as they come, so a run that was stopped
goes on; rebuilt code starts afresh. MLCC_CPU=haswell in the environment makes rows of their own, judged by the peak of
256-bit vectors. On a busy machine take --clock cpu.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import random
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402

from benchmarks import contenders, harness  # noqa: E402
from benchmarks.apart import Record, geometric_mean, judge, run_rows, tell  # noqa: E402
from benchmarks.roofline import measure_now  # noqa: E402
from benchmarks.suite import CLOCKS, TOLERANCE, TOLERANCE_16_BIT, environment  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

ROWS = (1, 2, 4, 7, 16, 32, 64, 128, 512, 2048)
# N x K: square and small, projections of transformers, odd ones, a vocabulary.
SIZES = (
    "64x64,128x512,333x77,768x768,1000x512,2304x768,3072x768,768x3072,1023x1025,4096x1024,4095x1023,4096x4096,"
    "50257x768"
)
# Of wider weights only as many rows as decoding has.
WIDEST, MOST_ROWS_OF_WIDER = 4096, 16
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "int8": torch.int8}
ELEMENT_BYTES = {"f32": 4, "bf16": 2, "int8": 1}
TOLERANCES = {"f32": TOLERANCE, "bf16": TOLERANCE_16_BIT, "int8": 0.0}
CONTENDERS = ("eager", "onednn", "mlcc", "mlcc_static")
JUDGED = "mlcc_static"
# Where a row counts for the share of the peak: rows of x, and 2MNK by dtype.
PEAK_ROWS = 64
PEAK_FLOPS = {"f32": 50e6, "bf16": 200e6, "int8": 200e6}
NO_LIBRARY_AHEAD = 0.97
# A call at 1x16x16 is dispatch alone; more than this share of a call is never taken off.
MOST_DISPATCH = 0.95
# The longest rows take 0.6 s a call.
MIN_ROUNDS = 5


class Row(NamedTuple):
    """What is measured."""

    dtype: str
    m: int
    n: int
    k: int
    threads: int
    form: str
    clock: str
    malloc: str
    cpu: str  # MLCC_CPU, '' for this machine's own

    @property
    def flops(self) -> float:
        """A multiply-add counts as two."""
        return 2.0 * self.m * self.n * self.k

    @property
    def weight_bytes(self) -> int:
        """Of the weight, unpacked."""
        return self.n * self.k * ELEMENT_BYTES[self.dtype]

    @property
    def is_judged_by_peak(self) -> bool:
        """Whether it is large enough."""
        return self.m >= PEAK_ROWS and self.flops >= PEAK_FLOPS[self.dtype]

    @property
    def is_judged_by_bandwidth(self) -> bool:
        """Whether one row of x meets a weight that the second-level cache cannot hold."""
        return self.m == 1 and self.weight_bytes > _second_level_bytes()

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.dtype:4} {f'{self.m}x{self.n}x{self.k}':14}"


def main() -> int:
    """Measure what is missing, then print what it amounts to; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.rows_to_measure:
        rows = [Row(*one) for one in json.loads(arguments.rows_to_measure)]
        tell(measure_all(rows, arguments.seconds))
        return 0
    store = Store(ROOT / "build" / "matmul.jsonl", arguments.fresh)
    rows = list(_rows(arguments))
    options = ["--seconds", str(arguments.seconds)]
    for _, one_weight in itertools.groupby(rows, lambda row: (row.dtype, row.n, row.k)):
        group = list(one_weight)
        for row in group:
            if (known := store.get(row)) is not None:
                print(format_row(row, known))
        missing = [row for row in group if store.get(row) is None]
        variables = environment(arguments.threads, arguments.malloc)
        for row, record in run_rows(__file__, missing, options, variables):
            print(format_row(row, record), flush=True)
            if record["seconds"]:  # else it may go better next time
                store.append(row, record)
    measured = [(row, store[row]) for row in rows if store.get(row) is not None]
    if arguments.json:
        table = [{**row._asdict(), **record, **figures(row, record)} for row, record in measured]
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    return print_report(measured)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--sizes", type=_pairs, default=_pairs(SIZES), metavar="NxK,...")
    parser.add_argument("--ms", type=_numbers, default=list(ROWS), help="rows of x")
    parser.add_argument("--dtypes", type=names_among(DTYPES), default=list(DTYPES))
    parser.add_argument("--sample", type=int, help="so many shapes drawn at random instead")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--form", choices=("function", "module"), default="function")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--malloc", choices=("default", "kept"), default="default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--rows", dest="rows_to_measure", help=argparse.SUPPRESS)
    return parser.parse_args()


def _numbers(text: str) -> list[int]:
    return [int(one) for one in text.split(",")]


def _pairs(text: str) -> list[tuple[int, int]]:
    pairs = [one.split("x") for one in text.split(",")]
    return [(int(n), int(k)) for n, k in pairs]


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Those of one weight side by side."""
    rest = (arguments.threads, arguments.form, arguments.clock, arguments.malloc)
    cpu = os.environ.get("MLCC_CPU", "")
    for dtype in arguments.dtypes:
        if arguments.sample:
            shapes = draw_shapes(arguments.sample, arguments.seed)
        else:
            shapes = [(m, n, k) for n, k in arguments.sizes for m in arguments.ms]
            shapes = [(m, n, k) for m, n, k in shapes if n <= WIDEST or m <= MOST_ROWS_OF_WIDER]
        for m, n, k in shapes:
            yield Row(dtype, m, n, k, *rest, cpu)


def draw_shapes(count: int, seed: int) -> list[tuple[int, int, int]]:
    """M of 1 to 2048, N and K of 64 to 4096, each order of magnitude as likely as another."""
    drawn = random.Random(seed)

    def draw(low: int, high: int) -> int:
        return round(math.exp(drawn.uniform(math.log(low), math.log(high))))

    return [(draw(1, 2048), draw(64, 4096), draw(64, 4096)) for _ in range(count)]


def _second_level_bytes() -> int:
    path = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")  # "1024K"
    return int(path.read_text().strip().removesuffix("K")) << 10 if path.exists() else 1 << 20


# -- one process


@dataclass(frozen=True)
class Problem:
    """A row's function and what it is called with; the first input is x, the second the weight."""

    row: Row
    function: Callable[..., Tensor]
    inputs: tuple[Tensor, ...]

    @classmethod
    def of(cls, row: Row) -> Problem:
        """With random numbers, the same at each call."""
        torch.manual_seed(0)
        dtype = DTYPES[row.dtype]
        if row.dtype == "int8":
            x, w = (torch.randint(-128, 128, (rows, row.k), dtype=dtype) for rows in (row.m, row.n))
            return cls(row, _int_matmul, (x, nn.Parameter(w, requires_grad=False)))
        x = torch.randn(row.m, row.k, dtype=dtype)
        w = nn.Parameter(torch.randn(row.n, row.k, dtype=dtype))
        return cls(row, _linear, (x, w, nn.Parameter(torch.randn(row.n, dtype=dtype))))

    def prepare(self, name: str) -> Callable[[], Tensor]:
        """What is timed of a contender, called once."""
        call = self._prepare(name)
        call()
        return call

    def _prepare(self, name: str) -> Callable[[], Tensor]:
        function, inputs = self.function, self.inputs
        if name == "eager":
            return lambda: function(*inputs)
        if name == "onednn":
            return _quantized(self) if self.row.dtype == "int8" else _packed(self)
        import mlcc

        dynamic = None if name == "mlcc" else False
        if self.row.form == "function":
            jitted = mlcc.jit(function, dynamic=dynamic)
            return lambda: jitted(*inputs)
        jitted = mlcc.jit(Holder(function, inputs[1:]), dynamic=dynamic)
        return lambda: jitted(inputs[0])


class Holder(nn.Module):
    """A module with the weights, called with x."""

    def __init__(self, function: Callable[..., Tensor], weights: Sequence[Tensor]) -> None:
        super().__init__()
        self.function = function
        self.weights = nn.ParameterList(weights)

    def forward(self, x: Tensor) -> Tensor:
        """The function of x and the weights."""
        return self.function(x, *self.weights)


def _linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.linear(x, w, b)


def _int_matmul(x: Tensor, w: Tensor) -> Tensor:
    return torch._int_mm(x, w.t())


def _packed(problem: Problem) -> Callable[[], Tensor]:
    x, w, b = problem.inputs
    packed = torch.ops.mkldnn._reorder_linear_weight(w, problem.row.m)
    run = torch.ops.mkldnn._linear_pointwise.default
    return lambda: run(x, packed, b, "none", [], "")


def _quantized(problem: Problem) -> Callable[[], Tensor]:
    x, w = problem.inputs
    positive = x.view(torch.uint8)
    packed = torch.ops.onednn.qlinear_prepack(w, [problem.row.m, problem.row.k])
    scales, zeros = torch.ones(problem.row.n), torch.zeros(problem.row.n, dtype=torch.int32)
    run = torch.ops.onednn.qlinear_pointwise.default
    of_x, of_w, of_result = (1.0, 0), (packed, scales, zeros, None), (1.0, 0, torch.float32)
    return lambda: run(positive, *of_x, *of_w, *of_result, "none", [], "")


def measure_all(rows: Sequence[Row], seconds: float) -> Iterator[Record]:
    """The records of rows of one process."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(rows[0].threads)
    footprints = sorted({row.weight_bytes for row in rows if row.m == 1})
    limits, reads = measure_now(rows[0].threads, footprints)
    for row in rows:
        record = measure(row, seconds)
        record["peak"] = limits.peak(row.dtype, is_avx2=row.cpu == "haswell")
        record["read"] = reads[row.weight_bytes] if row.m == 1 else None
        yield record


def measure(row: Row, seconds: float) -> Record:
    """Prepare, check and time the contenders of a row."""
    problem = Problem.of(row)
    clock = CLOCKS[row.clock]
    calls: dict[str, Callable[[], Tensor]] = {}
    reasons: dict[str, str] = {}
    with torch.no_grad():
        for name in CONTENDERS:
            try:
                call = problem.prepare(name)
            except RuntimeError as error:
                if name != "onednn":
                    raise
                reasons[name] = str(error).splitlines()[0][:200]
                continue
            if fault := _fault(problem, name, call, calls):
                reasons[name] = fault
            else:
                calls[name] = call
        timed = harness.compare(calls, seconds=seconds, min_rounds=MIN_ROUNDS, clock=clock)
        alone: dict[str, float] = {}
        dispatch: dict[str, float] = {}
        if JUDGED in calls:
            small = Problem.of(row._replace(m=1, n=16, k=16)).prepare(JUDGED)
            for found, call, share in ((alone, calls[JUDGED], 0.4), (dispatch, small, 0.05)):
                own = harness.compare(
                    {JUDGED: call}, seconds=share * seconds, min_rounds=MIN_ROUNDS, clock=clock
                )
                found[JUDGED] = own.spread(JUDGED).low
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {name: timed.ratio(name).median for name in calls},
        "rounds": timed.rounds,
        "alone_seconds": alone,
        "dispatch_seconds": dispatch,
        "reasons": reasons,
    }


def _fault(
    problem: Problem, name: str, call: Callable[[], Tensor], calls: dict[str, Callable[[], Tensor]]
) -> str:
    """Why the result is wrong, or ''; eager's is right, and oneDNN's of bytes is that of another function."""
    if name == "eager" or (name == "onednn" and problem.row.dtype == "int8"):
        return ""
    error = contenders.largest_error([call()], [calls["eager"]()])
    return "" if error <= TOLERANCES[problem.row.dtype] else f"WRONG: off by {error:.2g}"


# -- report


def kernel_seconds(record: Record) -> float | None:
    """Of the judged contender's call alone, without dispatch."""
    if JUDGED not in record["alone_seconds"]:
        return None
    alone = float(record["alone_seconds"][JUDGED])
    return max(alone - record["dispatch_seconds"][JUDGED], (1 - MOST_DISPATCH) * alone)


def figures(row: Row, record: Record) -> Record:
    """What is told of a row: rates, shares of the limits and ratios of the judged contender."""
    found: Record = {"gflops": {n: row.flops / s / 1e9 for n, s in record["seconds"].items()}}
    kernel = kernel_seconds(record)
    if kernel is not None:
        found["kernel_gflops"] = row.flops / kernel / 1e9
        found["share_of_peak"] = row.flops / kernel / record["peak"]
        if record["read"]:
            found["read_rate"] = row.weight_bytes / kernel
            found["share_of_read"] = found["read_rate"] / record["read"]
        for other in ("eager", "onednn", "mlcc"):
            if other in record["ratio"]:
                found[f"over_{other}"] = record["ratio"][JUDGED] / record["ratio"][other]
    return found


def over_library(row: Row, found: Record) -> float | None:
    """The least of the ratios over libraries that compute the same."""
    names = ("over_eager",) if row.dtype == "int8" else ("over_eager", "over_onednn")
    return min((found[name] for name in names if name in found), default=None)


def format_row(row: Row, record: Record) -> str:
    """A line of the table."""
    found = figures(row, record) if record["seconds"] else {"gflops": {}}
    texts = [row.title]
    for name in CONTENDERS:
        if name in found["gflops"]:
            texts.append(f"{name} {found['gflops'][name]:.1f}")
        elif name in record["reasons"]:
            texts.append(f"{name}: {record['reasons'][name]}")
    if "kernel_gflops" in found:
        texts.append(f"kernel {found['kernel_gflops']:.1f} GFLOP/s")
        texts.append(f"peak {found['share_of_peak']:.2f}")
        if "share_of_read" in found:
            texts.append(f"read {found['share_of_read']:.2f} of {record['read'] / 1e9:.0f} GB/s")
        for other in ("eager", "onednn"):
            if f"over_{other}" in found:
                texts.append(f"{found[f'over_{other}']:.2f}x {other}")
    return "  ".join([*texts, *filter(None, [record["reasons"].get("process")])])


def print_report(measured: Sequence[tuple[Row, Record]]) -> int:
    """The worst rows and what was promised."""
    found = [(row, figures(row, record)) for row, record in measured]
    judged = [(row, one) for row, one in found if "kernel_gflops" in one]
    if judged:
        print(f"\n{len(measured)} rows")
        _print_worst(judged)
        _print_criteria(judged)
    wrong = [
        reason
        for _, record in measured
        for reason in record["reasons"].values()
        if reason.startswith("WRONG")
    ]
    return int(bool(wrong))


def _print_worst(judged: Sequence[tuple[Row, Record]], count: int = 5) -> None:
    for name, key in (
        ("slowest beside the libraries", over_library),
        ("least share of the peak", _peak_share),
        ("least share of the bandwidth", _read_share),
    ):
        valued = [(key(row, one), row) for row, one in judged]
        ranked = [(value, row) for value, row in valued if value is not None]
        ranked.sort(key=lambda pair: pair[0])
        worst = ", ".join(f"{value:.2f} {row.title.strip()}" for value, row in ranked[:count])
        print(f"{name}: {worst or '-'}")


def _peak_share(row: Row, found: Record) -> float | None:
    return found["share_of_peak"] if row.is_judged_by_peak else None


def _read_share(row: Row, found: Record) -> float | None:
    return found.get("share_of_read") if row.is_judged_by_bandwidth else None


def _print_criteria(judged: Sequence[tuple[Row, Record]]) -> None:
    for dtype in DTYPES:
        own = [(row, one) for row, one in judged if row.dtype == dtype]
        if not own:
            continue
        print(f"{dtype}:")
        over_eager = [one["over_eager"] for _, one in own if "over_eager" in one]
        over_onednn = [one["over_onednn"] for _, one in own if "over_onednn" in one]
        if dtype == "f32":
            judge("times as fast as eager", over_eager, mean=1.3)
        elif dtype == "bf16":
            judge("times as fast as oneDNN, packed", over_onednn, mean=1.0)
        else:
            print(f"  times as fast as eager {geometric_mean(over_eager):.3f}")
        is_avx2 = own[0][0].cpu == "haswell"
        peaks = _present(_peak_share, own)
        judge("share of the peak", peaks, mean=0.85 if is_avx2 else 0.90, least=0.80)
        judge("share of the read bandwidth, M = 1", _present(_read_share, own), least=0.85)
        judge("beside the faster library", _present(over_library, own), least=NO_LIBRARY_AHEAD)
        symbolic = [1 / one["over_mlcc"] for _, one in own if "over_mlcc" in one]
        judge("symbolic sizes beside static ones", symbolic, mean=0.95)


def _present(
    figure: Callable[[Row, Record], float | None], judged: Iterable[tuple[Row, Any]]
) -> list[float]:
    values = (figure(row, one) for row, one in judged)
    return [value for value in values if value is not None]


if __name__ == "__main__":
    sys.exit(main())
