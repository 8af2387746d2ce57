"""Models whose time is in contractions: mlcc beside eager and the fastest peer, and their share of the roofline.

usage: contraction_models.py [--filter REGEX] [--sizes BxS[xW][,...]] [--threads N] [--dtype f32|bf16|medium]
                             [--peers NAME[,NAME...]] [--survey] [--seconds 5] [--minutes M] [--clock wall|cpu]
                             [--malloc default|kept] [--json FILE] [--fresh]

The models are those of benchmarks/contraction_nets.py: BERT-base, GPT-2 small and a step of decoding, Llama-style
prefill and decoding, ViT-B/16, ResNet-18 and 50, MobileNet-style, U-Net, GRU, LSTM, all with random weights. A size is
batch x length (of a decode step: of the cache; of images: the side), and a third number changes the width (hidden
features, channels of the first layer): `--filter '^bert$' --sizes 1x77,4x256x512`. --dtype bf16 converts weights and
inputs, `medium` sets torch.set_float32_matmul_precision; where f32 was measured too, the speed over it is told.

With --survey each peer meets eager in a process of its own: Inductor (default, max-autotune, freezing, both),
ONNX Runtime, OpenVINO; one that is not installed is named and skipped. Then, without it, eager, mlcc (by mlcc.jit, with
symbolic sizes and without) and the row's fastest peer take turns (benchmarks/harness.py). Outputs are compared with
eager's before. Caches of keys and values are changed in place; ONNX Runtime and OpenVINO give them out and take them
in.

The roofline of a row is the larger of its multiply-adds (torch's FlopCounterMode; an attention counts whole where it is
causal) at the peak of its dtype, and its bytes (weights once, but of embeddings the rows read, inputs, results) at the
bandwidth of reading so many, both measured by the process that measures the row.

Records are appended to build/contraction-models.jsonl and build/contraction-peers.jsonl, so a run that was stopped goes
on; --minutes begins no row after so long. Rebuilt code starts afresh, peers are measured once per version of torch.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from benchmarks import contenders, harness  # noqa: E402
from benchmarks.apart import Record, judge, measured_rows, tell  # noqa: E402
from benchmarks.contraction_nets import NETS, Net  # noqa: E402
from benchmarks.roofline import measure_now  # noqa: E402
from benchmarks.suite import CLOCKS, environment, fastest, print_missing  # noqa: E402
from benchmarks.workloads import Case  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

INDUCTORS = (
    *("inductor", "inductor_max_autotune"),
    *("inductor_freezing", "inductor_freezing_max_autotune"),
)
PEERS = (*INDUCTORS, "onnxruntime", "openvino")
JUDGED = "mlcc_static"
DTYPES = ("f32", "bf16", "medium")
# What a result may part from eager's, relative to the largest number: rounding adds up over the layers.
TOLERANCE = {"f32": 1e-3, "bf16": 5e-2, "medium": 5e-2}
# A call of BERT with a batch of 8 takes 2 s.
MIN_ROUNDS = 5


class Row(NamedTuple):
    """What is measured in one process."""

    net: str
    size: str
    dtype: str
    threads: int
    malloc: str
    clock: str
    against: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.net:12} {self.size:9} {self.dtype:6} {self.threads}"


def main() -> int:
    """Measure what is missing, then print what it amounts to; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.rows:
        row = Row(*json.loads(arguments.rows)[0])
        tell([measure(row._replace(against=tuple(row.against)), arguments.seconds)])
        return 0
    print_missing(arguments.peers)
    version = f"torch {torch.__version__}"
    peers = Store(ROOT / "build" / "contraction-peers.jsonl", arguments.fresh, version)
    store = Store(ROOT / "build" / "contraction-models.jsonl", arguments.fresh)
    if arguments.survey:
        store = peers
    rows = list(_rows(arguments, peers))
    options = ["--seconds", str(arguments.seconds)]
    found = measured_rows(
        __file__,
        rows,
        store,
        options,
        lambda row: environment(row.threads, row.malloc),
        arguments.minutes,
        _is_final,
    )
    for row, record in found:
        print(format_row(row, record), flush=True)
    measured = [(row, store[row]) for row in rows if store.get(row) is not None]
    print(f"{len(measured)} of {len(rows)} rows measured")
    if arguments.json:
        table = [{**row._asdict(), **record} for row, record in measured]
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    if not arguments.survey:
        print_criteria(measured, peers, store)
    faults = [reason for _, record in measured for reason in record["reasons"].values()]
    return int(any(reason.startswith("WRONG") for reason in faults))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filter", type=re.compile, default=re.compile(""), help="of names")
    parser.add_argument("--sizes", type=lambda text: text.split(","), metavar="BxS[xW],...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=DTYPES, default="f32")
    parser.add_argument("--peers", type=names_among(PEERS), default=list(PEERS))
    parser.add_argument("--survey", action="store_true", help="measure the peers against eager")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--malloc", choices=("default", "kept"), default="default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    return parser.parse_args()


def _is_final(row: Row, record: Record) -> bool:
    missing = any(contenders.missing_packages(one) for one in row.against)
    return bool(record["seconds"]) and not missing


def _rows(arguments: argparse.Namespace, peers: Store) -> Iterator[Row]:
    rest = (arguments.dtype, arguments.threads, arguments.malloc, arguments.clock)
    for name, kind in NETS.items():
        if not arguments.filter.search(name):
            continue
        for size in arguments.sizes or kind.sizes:
            row = Row(name, size, *rest, against=())
            surveyed = _surveys(row, arguments.peers)
            if arguments.survey:
                yield from surveyed
            else:
                found = fastest([(one, peers.get(one)) for one in surveyed])
                yield row._replace(against=(*contenders.OWN, *found))


def _surveys(row: Row, peers: Sequence[str]) -> list[Row]:
    return [row._replace(against=("eager", peer)) for peer in peers]


# -- one process


def build(row: Row) -> tuple[Case, float]:
    """The model in the row's dtype as a case, and the flops of a call."""
    kind = NETS[row.net]
    batch, size, *width = map(int, row.size.split("x"))
    net = kind.build(batch, size, *(width or [kind.width]))
    flops = count_flops(net)
    inputs = net.inputs
    if row.dtype == "bf16":
        net.module.bfloat16()
        inputs = tuple(x.bfloat16() if x.is_floating_point() else x for x in inputs)
    return Case(net.module, inputs, in_place=net.in_place), flops


def count_flops(net: Net) -> float:
    """Of contractions; a multiply-add counts as two. Without oneDNN an LSTM is made of such, too."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default

    def flops_of_attention(
        query: Any, key: Any, value: Any, *_: Any, out_shape: Any = None, **__: Any
    ) -> int:
        del out_shape
        *batch, rows, width = query
        count: int = 2 * rows * key[-2] * (width + value[-1])
        for extent in batch:
            count *= extent
        return count

    recurrent = any(isinstance(one, nn.RNNBase) for one in net.module.modules())
    counter = FlopCounterMode(display=False, custom_mapping={attention: flops_of_attention})
    enabled = torch.backends.mkldnn.flags(enabled=not recurrent)
    inputs = [x.clone() if i in net.in_place else x for i, x in enumerate(net.inputs)]
    with torch.no_grad(), enabled, counter:
        net.module(*inputs)
    return float(counter.get_total_flops())


def count_bytes(case: Case, results: Sequence[Tensor]) -> int:
    """What a call must read and write: weights once, but of embeddings the rows looked up, inputs and results."""
    assert isinstance(case.function, nn.Module)
    tables = {
        id(layer.weight) for layer in case.function.modules() if isinstance(layer, nn.Embedding)
    }
    others = {
        id(weight)
        for layer in case.function.modules()
        if not isinstance(layer, nn.Embedding)
        for weight in layer.parameters(recurse=False)
    }
    held = [
        one
        for one in (*case.function.parameters(), *case.function.buffers())
        if id(one) not in tables - others
    ]
    return sum(one.numel() * one.element_size() for one in (*held, *case.inputs, *results))


def measure(row: Row, seconds: float) -> Record:
    """Prepare, check and time what a row asks for."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(row.threads)
    if row.dtype == "medium":
        torch.set_float32_matmul_precision("medium")
    case, flops = build(row)
    ready: dict[str, Callable[[], Any]] = {}
    compile_seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    expected: list[Tensor] = []
    with torch.no_grad():
        for name in row.against:
            try:
                contender = contenders.prepare(name, case, row.threads)
            except contenders.UnavailableError as reason:
                reasons[name] = str(reason)
                continue
            compile_seconds[name] = round(contender.compile_seconds, 3)
            results = [result.clone() for result in contender.results()]
            expected = expected or results
            error = contenders.largest_error(results, expected)
            if not error <= TOLERANCE[row.dtype]:
                reasons[name] = f"WRONG: off by {error:.2g}"
                continue
            ready[name] = contender.call
        returned = expected[: len(expected) - len(case.in_place)]
        moved = count_bytes(case, returned)
        limits, reads = measure_now(row.threads, [moved])
        timed = harness.compare(
            ready, seconds=seconds, min_rounds=MIN_ROUNDS, clock=CLOCKS[row.clock]
        )
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {name: timed.ratio(name).median for name in ready},
        "rounds": timed.rounds,
        "compile_seconds": compile_seconds,
        "reasons": reasons,
        "flops": flops,
        "bytes": moved,
        "peak": limits.peak("bf16" if row.dtype == "bf16" else "f32"),
        "read": reads[moved],
    }


# -- report


def roofline_share(record: Record, name: str) -> float:
    """What the roofline takes through what was taken."""
    least = max(record["flops"] / record["peak"], record["bytes"] / record["read"])
    return float(least / record["seconds"][name])


def format_row(row: Row, record: Record) -> str:
    """A line of the table; in parentheses the speed over eager and the share of the roofline."""
    texts = [row.title]
    for name in row.against:
        if name in record["seconds"]:
            milliseconds, share = record["seconds"][name] * 1e3, roofline_share(record, name)
            texts.append(
                f"{name} {milliseconds:.3f} ms ({record['ratio'][name]:.2f}x, {share:.2f})"
            )
        elif name in record["reasons"]:
            texts.append(f"{name}: {record['reasons'][name]}")
    if "flops" in record:
        texts.append(f"{record['flops'] / 1e9:.2f} GFLOP, {record['bytes'] / 1e6:.1f} MB")
    return "  ".join([*texts, *filter(None, [record["reasons"].get("process")])])


def _over_best(row: Row, record: Record) -> float | None:
    """The judged one's speed over the best of eager and the fastest peer; None before a survey."""
    peers = [one for one in row.against[len(contenders.OWN) :] if one in record["ratio"]]
    if not peers:
        return None
    return float(record["ratio"][JUDGED] / max(1.0, *(record["ratio"][one] for one in peers)))


def print_criteria(measured: Sequence[tuple[Row, Record]], peers: Store, store: Store) -> None:
    """What was promised, of the rows that were measured."""
    own = [(row, record) for row, record in measured if JUDGED in record["ratio"]]
    over_best = [(row, _over_best(row, record)) for row, record in own]
    judge("times as fast as the best peer", [v for _, v in over_best if v], mean=1.12, least=1.0)
    for group, mean in (("gemm", 1.05), ("conv", 1.1), ("decode", 1.25), ("recurrent", 1.0)):
        values = [v for row, v in over_best if v and NETS[row.net].group == group]
        judge(f"  of them {group}", values, mean=mean)
    shares = [roofline_share(rec, JUDGED) for row, rec in own if NETS[row.net].has_roofline]
    judge("share of the roofline", shares, least=0.90)
    judge("times as fast as eager", [rec["ratio"][JUDGED] for _, rec in own], mean=1.4)
    judge("times as fast as Inductor's best", list(_over_inductor(own, peers)), mean=1.4)
    symbolic = [r["ratio"]["mlcc"] / r["ratio"][JUDGED] for _, r in own if "mlcc" in r["ratio"]]
    judge("symbolic sizes beside static ones", symbolic, least=0.95)
    judge("lower precision over f32", list(_over_f32(own, store)), least=1.6)


def _over_inductor(own: Sequence[tuple[Row, Record]], peers: Store) -> Iterator[float]:
    """By way of eager, beside which both were measured."""
    for row, record in own:
        surveys = [(one.against[1], peers.get(one)) for one in _surveys(row, INDUCTORS)]
        ratios = [one["ratio"][name] for name, one in surveys if one and name in one["ratio"]]
        if ratios:
            yield record["ratio"][JUDGED] / max(ratios)


def _over_f32(own: Sequence[tuple[Row, Record]], store: Store) -> Iterator[float]:
    """Where the same size was measured in f32, beside whatever peer."""
    for row, record in own:
        if row.dtype == "f32":
            continue
        for peer in ((), *((one,) for one in PEERS)):
            other = store.get(row._replace(dtype="f32", against=(*contenders.OWN, *peer)))
            if other is not None and JUDGED in other["seconds"]:
                yield other["seconds"][JUDGED] / record["seconds"][JUDGED]
                break


if __name__ == "__main__":
    sys.exit(main())
