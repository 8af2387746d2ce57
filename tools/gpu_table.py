#!/usr/bin/env python3
"""The table of a run of tools/gpu_check.py, from its results.jsonl. usage: gpu_table.py <results.jsonl>"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Record = dict[str, Any]
# Outcomes of tests and steps that keep a run from being good.
BAD = ("failed", "timeout")
# What mlcc is compared with, and what the columns are called.
RIVALS = {"eager": "eager", "inductor": "Inductor", "autotune": "Inductor, autotuned"}


def read(path: Path) -> list[Record]:
    """The records; a line that a killed process left half written is left out."""
    records = []
    for line in path.read_text().splitlines():
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    return records


def of_kind(records: Iterable[Record], kind: str) -> list[Record]:
    return [record for record in records if record.get("kind") == kind]


def geometric_mean(numbers: Sequence[float]) -> float | None:
    """None of nothing."""
    if not numbers:
        return None
    return math.exp(sum(map(math.log, numbers)) / len(numbers))


def merged_benchmarks(records: Sequence[Record]) -> dict[str, Record]:
    """By case: the last record of each contestant, and the ratios, each from the run that timed both sides."""
    cases: dict[str, Record] = {}
    for record in of_kind(records, "benchmark"):
        case = cases.setdefault(record["case"], {"times": {}, "ratios": {}, "class": ""})
        case["class"] = record["class"]
        for key in ("right", "reason", "bytes"):
            if key in record:
                case[key] = record[key]
        case["times"].update(record.get("times", {}))
        own = record.get("times", {}).get("mlcc")
        for name, timed in record.get("times", {}).items():
            if own and name != "mlcc":
                case["ratios"][name] = timed["us"] / own["us"]
    return cases


def summarize(records: Sequence[Record]) -> Record:
    """Counts, failures and means; `good` decides the exit status."""
    tests = of_kind(records, "test")
    steps = {record["step"]: record["outcome"] for record in of_kind(records, "step")}
    cases = merged_benchmarks(records)
    counts: dict[str, int] = {}
    for test in tests:
        counts[test["outcome"]] = counts.get(test["outcome"], 0) + 1
    wrong = [name for name, case in cases.items() if case.get("right") is False]
    # A rival that is late or broken is no fault of ours.
    own_steps = {name: o for name, o in steps.items() if name not in ("inductor", "autotune")}
    failed = [f"{t['step']}: {t['name']}" for t in tests if t["outcome"] in BAD]
    return {
        "good": not failed
        and not wrong
        and counts.get("passed", 0) > 0
        and not any(outcome in BAD for outcome in own_steps.values()),
        "steps": steps,
        "tests": counts,
        "failed": failed,
        "wrong_benchmarks": wrong,
        "ratios": {
            f"{kind} against {name}": geometric_mean(
                [
                    c["ratios"][name]
                    for c in cases.values()
                    if c["class"] == kind and name in c["ratios"]
                ]
            )
            for kind in ("memory", "model")
            for name in RIVALS
        },
    }


def render(records: Sequence[Record], summary: Record) -> str:
    """Markdown."""
    parts = ["# GPU check\n", f"{'Good' if summary['good'] else 'NOT good'}.\n"]
    facts = {record["name"]: record["value"] for record in of_kind(records, "fact")}
    parts.append(_rows(["fact", "value"], facts.items()))
    steps = of_kind(records, "step")
    parts.append(
        _rows(
            ["step", "outcome", "s", "detail"],
            [(s["step"], s["outcome"], s["seconds"], _one_line(s["detail"])) for s in steps],
        )
    )
    tests = of_kind(records, "test")
    counts = ", ".join(f"{n} {outcome}" for outcome, n in sorted(summary["tests"].items()))
    parts.append(f"Tests: {counts or 'none'}.\n")
    bad = [t for t in tests if t["outcome"] in BAD]
    if bad:
        parts.append(
            _rows(
                ["failed test", "why"], [(t["name"], _one_line(t.get("detail", ""))) for t in bad]
            )
        )
    ceilings = of_kind(records, "ceiling")
    if ceilings:
        parts.append(
            _rows(
                ["ceiling", "measured", "unit"],
                [(c["name"], _number(c["value"]), c["unit"]) for c in ceilings],
            )
        )
    parts += _benchmark_tables(records)
    means = [
        (name, _number(value)) for name, value in summary["ratios"].items() if value is not None
    ]
    if means:
        parts.append(
            _rows(["geometric mean of their time through mlcc's", "above 1: mlcc is faster"], means)
        )
    return "\n".join(parts)


def _benchmark_tables(records: Sequence[Record]) -> list[str]:
    copy = {c["name"]: c["value"] for c in of_kind(records, "ceiling")}.get("copy, best")
    cases = merged_benchmarks(records)
    heads = ["case", "right", "mlcc us", "share of copy"]
    heads += [f"{title} us (ratio)" for title in RIVALS.values()]
    heads += ["host us: mlcc, eager", "cold s: mlcc, Inductor"]
    rows = []
    for name, case in cases.items():
        own = case["times"].get("mlcc", {})
        row = [name, _right(case), _number(own.get("us")), _share(case, own, copy)]
        for rival in RIVALS:
            time, ratio = case["times"].get(rival, {}).get("us"), case["ratios"].get(rival)
            row.append(f"{_number(time)} ({_number(ratio)})" if time else "")
        eager, inductor = case["times"].get("eager", {}), case["times"].get("inductor", {})
        row.append(f"{_number(own.get('host_us'))}, {_number(eager.get('host_us'))}")
        row.append(f"{_number(own.get('cold_s'))}, {_number(inductor.get('cold_s'))}")
        rows.append(row)
    return [_rows(heads, rows)] if rows else []


def _right(case: Record) -> str:
    if "right" not in case:
        return "?"
    return "yes" if case["right"] else "NO: " + _one_line(case.get("reason", ""))


def _share(case: Record, own: Record, copy: float | None) -> str:
    """Bytes that must move over the time, in percent of the copy's bandwidth."""
    if not (case.get("bytes") and own.get("us") and copy):
        return ""
    return f"{100 * case['bytes'] / (own['us'] * 1e-6) / (copy * 1e9):.0f} %"


def _number(value: Any) -> str:
    if not isinstance(value, int | float):
        return "" if value is None else str(value)
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def _one_line(text: str) -> str:
    line = text.strip().splitlines()[-1] if text.strip() else ""
    return line.replace("|", "\\|")[:200]


def _rows(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    found = read(Path(sys.argv[1]))
    print(render(found, summarize(found)))
