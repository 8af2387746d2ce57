"""docs/coverage.md from what runs of the conformance samples recorded: what is generated, what is called, why.

usage: coverage.py [STORE ...] [--check]

A STORE is build/conformance-mlcc.jsonl unless given; of several, calls add up. With --check nothing is written: the
exit status is 1 if a call was recorded that the document does not tell of.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mlcc.importer.fx_graph import MEMORY_REASONS
from mlcc.rewrite.expand import MEMORY_OF_VIEW

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "docs" / "coverage.md"
STORE = ROOT / "build" / "conformance-mlcc.jsonl"

Record = dict[str, Any]

# Why an ATen op is called: the first pattern that its name matches.
WHY = (
    (
        "contraction",
        r"(?:add|sparse_)?(?:mm|bmm|mv|baddbmm|addbmm|addr)|dot|vdot|_?conv.*|_?convolution.*|_trilinear|.*bilinear",
    ),
    ("attention", r".*scaled_dot_product.*|_flash.*"),
    ("Fourier transform: a library", r"_fft.*|stft|istft"),
    (
        "linear algebra: a library",
        r"_?linalg.*|cholesky.*|lu_.*|ldl.*|qr|geqrf|orm.*|svd.*|lstsq|pinverse|triangular_solve|.*_inverse|_?cdist.*"
        r"|householder_product|matrix_exp|logdet|slogdet|_pdist.*",
    ),
    (
        "random numbers",
        r"bernoulli.*|normal.*|rand.*|multinomial|geometric.*|log_normal.*|cauchy.*|exponential.*|uniform.*|poisson"
        r"|binomial|native_dropout|_fused_dropout|rrelu.*|_standard_gamma.*|_sample_dirichlet|.*_with_noise.*",
    ),
    (
        "transcendental without an inline form yet",
        r"special_.*|a?(?:sin|cos|tan)h?|atan2|exp2?|expm1|log|log2|log10|log1p|logaddexp2?|lgamma|mvlgamma|digamma"
        r"|polygamma|i0e?|igammac?|erf.*|erfinv|pow|hypot|logit|_?log_sigmoid.*|binary_cross_entropy.*|sinc|celu|selu"
        r"|log_softmax|logcumsumexp|angle|xlogy|nextafter|frexp",
    ),
    (
        "sorting and selection",
        r"sort|topk|kthvalue|.*median|mode|msort|quantile|unique.*|_unique.*",
    ),
    (
        "the size of the result depends on data",
        r"nonzero.*|masked_select|_local_scalar_dense|bincount|histc|_?histogram.*|repeat_interleave|item",
    ),
    ("memory without values", r"(?:new_)?empty.*|resize.*|set_.*|_resize.*"),
    (
        "a copy, which eager's kernel does faster",
        r"chunk_cat|split_with_sizes_copy|diagonal_backward",
    ),
    ("sums of rows, which eager's kernel does 3 times as fast as a scatter", r"embedding_bag.*"),
    ("a loop until the remainder is 0", r"gcd|lcm"),
    ("sparse", r".*sparse.*|_coalesce.*|.*_csr.*"),
    ("sequence loss with its own kernel", r"_ctc_loss.*"),
)

# What the importer says of such views.
MEMORY_OF_RESULTS = MEMORY_REASONS[MEMORY_OF_VIEW]

INTRODUCTION = """\
What runs as a generated kernel and what is a call of an ATen kernel inside a compiled graph. Made by
`tests/conformance/coverage.py` from what the conformance runner records of samples of every op in torch's op database:
forward, and by a seed backward, with symbolic sizes and between pointwise ops. A call costs what eager's kernel costs,
and nothing is fused across it. CUDA kernels are generated from the same graphs: what is generated here is generated
there."""


def main() -> int:
    """Write or check the document; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("stores", type=Path, nargs="*", default=[STORE])
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    records = joined([record for store in arguments.stores for record in read(store)])
    if not arguments.check:
        DOCUMENT.write_text(render(records))
        return 0
    missing = undocumented(records, DOCUMENT.read_text())
    print("\n".join(missing))
    return int(bool(missing))


def read(store: Path) -> list[Record]:
    """The records of a store of run.py."""
    lines = [json.loads(line) for line in store.read_text().splitlines()]
    return [line["record"] for line in lines if "record" in line]


def joined(records: Iterable[Record]) -> list[Record]:
    """One record for each op and dtype, with the calls of all of them."""
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        one = found.setdefault((record["op"], record["dtype"]), {**record, "calls": {}})
        one["calls"].update(record.get("calls", {}))
    return list(found.values())


def calls_of(record: Record) -> dict[str, str]:
    """Call -> the importer's reason, but for views that only let results share memory: these move nothing."""
    calls: dict[str, str] = record["calls"]
    return {call: reason for call, reason in calls.items() if reason != MEMORY_OF_RESULTS}


def why(call: str, reason: str) -> str:
    """Why `call`, an overload like aten.mm.default, is no kernel of ours; `reason` is the importer's word."""
    name = call.split(".")[1]
    if reason != "no rule for this op":
        return reason
    for text, pattern in WHY:
        if re.fullmatch(pattern, name.lstrip("_")) or re.fullmatch(pattern, name):
            return text
    return "not yet"


def render(records: Iterable[Record]) -> str:
    """The whole document."""
    by_op: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_op[record["op"]].append(record)
    calls = _calls(by_op)
    whole = sum(all(not calls_of(r) for r in rows) for rows in by_op.values())
    rows = [_op_row(op, by_op[op]) for op in sorted(by_op)]
    called = [_call_row(call, calls[call]) for call in sorted(calls)]
    return "\n".join(
        [
            "# Coverage",
            "",
            *INTRODUCTION.splitlines(),
            "",
            f"Of {len(by_op)} ops of the database {whole} are generated in all dtypes and ways that were run.",
            "",
            "## ATen ops that are called",
            "",
            "| ATen op | why | seen in |",
            "|---|---|---|",
            *called,
            "",
            "## Ops of the database",
            "",
            "Dtypes in which all samples are generated, then those with calls, which may stand in few samples or in a",
            "backward.",
            "",
            "| op | generated | called |",
            "|---|---|---|",
            *rows,
            "",
        ]
    )


def _calls(by_op: Mapping[str, list[Record]]) -> dict[str, dict[str, set[str]]]:
    """Call -> why -> ops of the database."""
    calls: dict[str, dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
    for op, rows in by_op.items():
        for record in rows:
            for call, reason in calls_of(record).items():
                calls[call][why(call, reason)].add(op)
    return calls


def _call_row(call: str, reasons: Mapping[str, set[str]]) -> str:
    ops = sorted({op for names in reasons.values() for op in names})
    shown = ", ".join(ops[:3]) + (f" and {len(ops) - 3} more" if len(ops) > 3 else "")
    return f"| `{_short(call)}` | {'; '.join(sorted(reasons))} | {shown} |"


def _op_row(op: str, rows: list[Record]) -> str:
    generated = [row["dtype"] for row in rows if not calls_of(row)]
    called: dict[str, list[str]] = defaultdict(list)
    for row in rows:
        for call in sorted(calls_of(row)):
            called[call].append(row["dtype"])
    parts = []
    for dtypes in sorted({tuple(names) for names in called.values()}):
        names = [f"`{_short(call)}`" for call, where in called.items() if tuple(where) == dtypes]
        parts.append(f"{' '.join(dtypes)}: {', '.join(names)}")
    return f"| {op} | {' '.join(generated)} | {'; '.join(parts)} |"


def _short(call: str) -> str:
    return call.removeprefix("aten.").removesuffix(".default")


def undocumented(records: Iterable[Record], document: str) -> list[str]:
    """Calls that were recorded for an op and dtype and that its row of the document does not name."""
    rows = {line.split(" | ")[0].removeprefix("| "): line for line in document.splitlines()}
    missing = []
    for record in records:
        called = rows.get(record["op"], "| | |").split(" | ", 2)[2]
        parts = [
            part for part in called.split("; ") if record["dtype"] in part.split(":")[0].split()
        ]
        named = {name for part in parts for name in re.findall("`([^`]*)`", part)}
        for call in calls_of(record):
            if _short(call) not in named:
                missing.append(f"{record['op']} {record['dtype']}: calls {call}")
    return missing


if __name__ == "__main__":
    sys.exit(main())
