"""scaled_dot_product_attention by mlcc beside eager: lengths 128 to 8192, masks, score modifications, GQA, bf16; peaks.

usage: attention.py [--lengths S[,S...]] [--widths D[,D...]] [--forms NAME[,NAME...]] [--batch 1] [--heads 8]
                    [--queries N] [--backward] [--threads N] [--seconds 2] [--clock wall|cpu] [--malloc default|kept]
                    [--json FILE] [--fresh]

A form is a function of query, key and value [batch, heads, S, D], and of a mask where it has one. Lengths from 2048 on
have fewer heads, so that heads x S stays at 8192. --queries 1 gives a step of decoding over a cache of S, for the
forms that are not causal. --backward adds the gradients of all three. `eager` is the form in PyTorch; `sdpa` is eager
too where a form makes its mask from indices: with the mask made before, so that no one is compared with making it;
`mlcc` is mlcc.jit of the form, sizes as symbols, `mlcc_static` has `dynamic=False` and is judged. Forms called `parts`
have no call of attention in them, and are compared with `sdpa`.

Contenders take turns (benchmarks/harness.py); results are compared with eager's before. The peak is the resident memory
of a call beyond what was in use before it, when idle memory was given back, over the bytes of inputs and result;
without a matrix of S x S it does not grow with S. Rows have a process each; records are appended to
build/attention.jsonl, so a run that was stopped goes on; rebuilt code starts afresh. On a busy machine take --clock
cpu.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.nn import functional  # noqa: E402

from benchmarks import contenders, harness  # noqa: E402
from benchmarks.apart import Record, judge, run_rows, tell  # noqa: E402
from benchmarks.roofline import measure_now  # noqa: E402
from benchmarks.suite import CLOCKS, environment, peak_bytes  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

LENGTHS = (128, 512, 1024, 2048, 4096, 8192)
WIDTHS = (64, 128)
HEADS_TIMES_LENGTH = 8192
WINDOW = 256  # positions back that a sliding window sees
SOFT_CAP = 20.0
JUDGED = "mlcc_static"
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 3e-2}
MIN_ROUNDS = 5  # the longest rows take 3 s a call
_IDLE_SECONDS = 1.3  # longer than mlcc's pool keeps what is idle
# Bytes of a call beyond its start, over those of inputs and result: the result, and as much again for workspace.
MOST_PEAK = 2.0

sdpa = functional.scaled_dot_product_attention


# -- forms


@dataclass(frozen=True)
class Form:
    """A way to call attention."""

    function: Callable[..., Tensor]
    make_mask: Callable[[int, int, int], Tensor] | None = None  # of heads, queries, length
    ready: Callable[..., Tensor] | None = None  # what `sdpa` runs, with what `make_ready` makes
    make_ready: Callable[[int, int, int], Tensor] | None = None
    groups: int = 1  # query heads to one of key and value
    dtype: torch.dtype = torch.float32
    is_plain: bool = False
    is_causal: bool = False  # by place of query and key, so for as many queries as keys
    window: int | None = None  # how many keys a query sees

    def pairs(self, queries: int, length: int) -> float:
        """Of a query and a key that it sees."""
        if self.window is not None and self.window < length:
            return queries * self.window - self.window * (self.window - 1) / 2
        return length * (length + 1) / 2 if self.is_causal else queries * length


def _distance(queries: int, length: int) -> Tensor:
    """How far back from a query a key is; the last query is the last position."""
    return torch.arange(length - queries, length)[:, None] - torch.arange(length)[None]


def _plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v)


def _causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, is_causal=True)


def _masked(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return sdpa(q, k, v, attn_mask=mask)


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, is_causal=q.shape[2] > 1, enable_gqa=True)


def _window(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, attn_mask=_window_mask(q.shape[1], q.shape[2], k.shape[2]))


def _window_mask(heads: int, queries: int, length: int) -> Tensor:
    del heads
    distance = _distance(queries, length)
    return (distance >= 0) & (distance < WINDOW)


def _alibi(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return sdpa(q, k, v, attn_mask=_alibi_mask(q.shape[1], q.shape[2], k.shape[2]))


def _alibi_mask(heads: int, queries: int, length: int) -> Tensor:
    slopes = torch.exp2(-8.0 * torch.arange(1, heads + 1) / heads)
    distance = _distance(queries, length)
    bias = -slopes[:, None, None] * distance
    return bias.masked_fill(distance < 0, -torch.inf)[None]


def _parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1) @ v


def _causal_parts(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return scores.masked_fill(_distance(q.shape[2], k.shape[2]) < 0, -torch.inf).softmax(-1) @ v


def _soft_cap(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT * q.shape[-1] ** -0.5
    return (SOFT_CAP * torch.tanh(scores / SOFT_CAP)).softmax(-1) @ v


def _boolean_mask(heads: int, queries: int, length: int) -> Tensor:
    """A quarter of the keys is padding."""
    del heads, queries
    return (torch.arange(length) < length - length // 4)[None, None, None]


def _float_mask(heads: int, queries: int, length: int) -> Tensor:
    del heads
    return torch.randn(queries, length)


FORMS: dict[str, Form] = {
    "plain": Form(_plain, is_plain=True),
    "causal": Form(_causal, is_plain=True, is_causal=True),
    "boolean_mask": Form(_masked, make_mask=_boolean_mask),
    "float_mask": Form(_masked, make_mask=_float_mask),
    "window": Form(_window, ready=_masked, make_ready=_window_mask, window=WINDOW),
    "alibi": Form(_alibi, ready=_masked, make_ready=_alibi_mask, is_causal=True),
    "soft_cap": Form(_soft_cap),
    "gqa": Form(_grouped, groups=4, is_causal=True),
    "bf16": Form(_plain, dtype=torch.bfloat16),
    "bf16_causal": Form(_causal, dtype=torch.bfloat16, is_causal=True),
    "parts": Form(_parts, ready=_plain, is_plain=True),
    "causal_parts": Form(_causal_parts, ready=_causal, is_plain=True, is_causal=True),
}


class Row(NamedTuple):
    """What is measured in one process."""

    form: str
    length: int
    width: int
    batch: int
    heads: int
    queries: int  # 0: as many as keys
    backward: bool
    threads: int
    clock: str
    malloc: str

    @property
    def title(self) -> str:
        """For people."""
        queries = f" q={self.queries}" * bool(self.queries) + " backward" * self.backward
        return f"{self.form:12} S={self.length:<5} D={self.width:<4} H={self.heads}{queries}"


def main() -> int:
    """Measure what is missing, then print what it amounts to; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.rows:
        tell(measure(Row(*row), arguments.seconds) for row in json.loads(arguments.rows))
        return 0
    store = Store(ROOT / "build" / "attention.jsonl", arguments.fresh)
    rows = list(_rows(arguments))
    for row in rows:
        record = store.get(row)
        if record is None:
            options = ["--seconds", str(arguments.seconds)]
            variables = environment(row.threads, row.malloc)
            ((_, record),) = run_rows(__file__, [row], options, variables)
            if record["seconds"]:  # else it may go better next time
                store.append(row, record)
        print(format_row(row, record), flush=True)
    measured = [(row, store[row]) for row in rows if store.get(row) is not None]
    if arguments.json:
        table = [{**row._asdict(), **record} for row, record in measured]
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    print_criteria(measured)
    faults = [reason for _, record in measured for reason in record["reasons"].values()]
    return int(any(reason.startswith("WRONG") for reason in faults))


def _parse_arguments() -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(one) for one in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--lengths", type=numbers, default=list(LENGTHS))
    parser.add_argument("--widths", type=numbers, default=list(WIDTHS), help="of each head")
    parser.add_argument("--forms", type=names_among(FORMS), default=list(FORMS))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--queries", type=int, default=0, help="0: as many as keys")
    parser.add_argument("--backward", action="store_true")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--malloc", choices=("default", "kept"), default="default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    rest = (arguments.queries, arguments.backward, arguments.threads)
    for name in arguments.forms:
        if arguments.queries and FORMS[name].is_causal:
            continue
        for length in arguments.lengths:
            heads = max(min(arguments.heads, HEADS_TIMES_LENGTH // length), 1, FORMS[name].groups)
            for width in arguments.widths:
                shape = (name, length, width, arguments.batch, heads)
                yield Row(*shape, *rest, arguments.clock, arguments.malloc)


# -- one process


def measure(row: Row, seconds: float) -> Record:
    """Prepare, check and time the contenders of a row; then their peaks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(row.threads)
    torch.manual_seed(0)
    form = FORMS[row.form]
    calls = {}
    expected: list[Tensor] = []
    reasons: dict[str, str] = {}
    limits, _ = measure_now(row.threads)
    with torch.set_grad_enabled(row.backward):
        inputs = _inputs(row, form)
        for name, function, others in _contenders(row, form):
            call = _call(row, function, (*inputs, *others))
            results = [result.clone() for result in call()]
            expected = expected or results
            error = contenders.largest_error(results, expected)
            if error <= TOLERANCE[form.dtype]:
                calls[name] = call
            else:
                reasons[name] = f"WRONG: off by {error:.2g}"
        timed = harness.compare(
            calls, seconds=seconds, min_rounds=MIN_ROUNDS, clock=CLOCKS[row.clock]
        )
        peaks = {name: _peak(call) for name, call in calls.items()}
    queries = row.queries or row.length
    dtype = "bf16" if form.dtype == torch.bfloat16 else "f32"
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {name: timed.ratio(name).median for name in calls},
        "rounds": timed.rounds,
        "reasons": reasons,
        "peak_bytes": peaks,
        "io_bytes": sum(x.numel() * x.element_size() for x in (*inputs, inputs[0])),
        "flops": 4.0 * row.batch * row.heads * form.pairs(queries, row.length) * row.width,
        "peak": limits.peak(dtype),
    }


def _inputs(row: Row, form: Form) -> tuple[Tensor, Tensor, Tensor]:
    def draw(heads: int, length: int) -> Tensor:
        shape = (row.batch, heads, length, row.width)
        return torch.randn(shape, dtype=form.dtype, requires_grad=row.backward)

    few = row.heads // form.groups
    return draw(row.heads, row.queries or row.length), draw(few, row.length), draw(few, row.length)


def _contenders(row: Row, form: Form) -> Iterator[tuple[str, Callable[..., Tensor], list[Tensor]]]:
    """Names, functions, and what they are called with beside query, key and value."""
    import mlcc

    shape = (row.heads, row.queries or row.length, row.length)
    masks = [form.make_mask(*shape)] if form.make_mask else []
    yield "eager", form.function, masks
    if form.ready:
        yield "sdpa", form.ready, [form.make_ready(*shape)] if form.make_ready else []
    yield "mlcc", mlcc.jit(form.function), masks
    yield JUDGED, mlcc.jit(form.function, dynamic=False), masks


def _call(
    row: Row, function: Callable[..., Tensor], inputs: Sequence[Tensor]
) -> Callable[[], Sequence[Tensor]]:
    if not row.backward:
        return lambda: [function(*inputs)]
    gradient = torch.ones_like(inputs[0])

    def forward_and_backward() -> Sequence[Tensor]:
        result = function(*inputs)
        return [result.detach(), *torch.autograd.grad(result, list(inputs[:3]), gradient)]

    return forward_and_backward


def _peak(call: Callable[[], object]) -> int | None:
    time.sleep(_IDLE_SECONDS)
    return peak_bytes(call)


# -- report


def over_eager(record: Record) -> float:
    """The judged one's speed over the faster of eager's."""
    return float(record["ratio"][JUDGED] / max(1.0, record["ratio"].get("sdpa", 1.0)))


def peak_share(record: Record, name: str) -> float | None:
    """Bytes of a call at its peak, over those of inputs and result."""
    peak = record["peak_bytes"].get(name)
    return None if peak is None else float(peak / record["io_bytes"])


def format_row(row: Row, record: Record) -> str:
    """A line of the table: times, speeds over eager, peaks."""
    texts = [row.title]
    for name, seconds in record["seconds"].items():
        text = f"{name} {seconds * 1e3:.3f} ms ({record['ratio'][name]:.2f}x"
        share = peak_share(record, name)
        texts.append(f"{text}, peak {share:.1f})" if share is not None else f"{text})")
    if JUDGED in record["seconds"] and not row.backward:
        share = record["flops"] / record["seconds"][JUDGED] / record["peak"]
        texts.append(f"{share:.2f} of the FMA peak")
    return "  ".join([*texts, *(f"{name}: {why}" for name, why in record["reasons"].items())])


def print_criteria(measured: Sequence[tuple[Row, Record]]) -> None:
    """What was promised, of the rows that were measured."""
    own = [(row, record) for row, record in measured if JUDGED in record["ratio"]]
    for width, mean in ((64, 1.15), (128, 1.2)):
        plain = [over_eager(r) for row, r in own if FORMS[row.form].is_plain and row.width == width]
        judge(f"times as fast as sdpa, plain, D = {width}", plain, mean=mean)
    others = [over_eager(record) for row, record in own if not FORMS[row.form].is_plain]
    judge("times as fast as sdpa, masks, scores, GQA, bf16", others, mean=1.3)
    symbolic = [r["ratio"]["mlcc"] / r["ratio"][JUDGED] for _, r in own]
    judge("symbolic sizes beside static ones", symbolic, mean=0.95)
    shares = [(peak_share(record, JUDGED), row) for row, record in own]
    large = [(share, row) for share, row in shares if share is not None and share > MOST_PEAK]
    print(
        f"  {'SHORT' if large else 'pass ':5} peaks above {MOST_PEAK} of inputs and result: {len(large)}"
    )
    for share, row in large:
        print(f"    {share:.1f} {row.title}")


if __name__ == "__main__":
    sys.exit(main())
