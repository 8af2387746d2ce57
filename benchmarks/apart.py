"""Rows of a benchmark measured by another process, one after the other, each told as soon as it is done.

for row, record in run_rows(__file__, rows, ["--seconds", "1"], environment):     # in the program that was called
    store.append(row, record)
tell(measure(row) for row in json.loads(arguments.rows))    # in the process that it starts, with --rows and the rows

Where the process dies, the row it was at has its last words for a record, and another process goes on with the rest.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tests.store import Store

Record = dict[str, Any]
Row = TypeVar("Row", bound=Sequence[Any])

_MARK = "record: "
_LONGEST_REASON = 300  # characters


def run_rows(
    script: str, rows: Sequence[Row], options: Sequence[str], environment: Mapping[str, str]
) -> Iterator[tuple[Row, Record]]:
    """Each row with its record; `seconds` of a record is empty where the process died."""
    left = list(rows)
    while left:
        command = [sys.executable, script, "--rows", json.dumps(left), *options]
        with tempfile.TemporaryFile("w+") as errors:
            with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment
            ) as process:
                assert process.stdout is not None
                for line in process.stdout:
                    if line.startswith(_MARK) and left:
                        yield left.pop(0), json.loads(line.removeprefix(_MARK))
            if left:
                errors.seek(0)
                words = errors.read().strip().splitlines()
                reason = words[-1] if words else f"exit status {process.returncode}"
                yield left.pop(0), {"reasons": {"process": reason[:_LONGEST_REASON]}, "seconds": {}}


def measured_rows(
    script: str,
    rows: Iterable[Row],
    store: Store,
    options: Sequence[str],
    environment: Callable[[Row], Mapping[str, str]],
    minutes: float,
    is_final: Callable[[Row, Record], bool],
) -> Iterator[tuple[Row, Record]]:
    """Each row with what the store has of it, or what is measured now, each by a process of its own.

    Only what `is_final` is stored: else it may go better next time. Ends where a row would begin after so many minutes.
    """
    end = time.monotonic() + 60 * minutes
    for row in rows:
        record = store.get(row)
        if record is None:
            if time.monotonic() > end:
                return
            ((_, record),) = run_rows(script, [row], options, environment(row))
            if is_final(row, record):
                store.append(row, record)
        yield row, record


def tell(records: Iterable[Record]) -> None:
    """Print each record for `run_rows` as it comes."""
    for record in records:
        print(_MARK + json.dumps(record), flush=True)


def geometric_mean(values: Sequence[float]) -> float:
    """Of at least one positive number."""
    return math.exp(sum(map(math.log, values)) / len(values))


def judge(name: str, values: Sequence[float], mean: float = 0.0, least: float = 0.0) -> bool:
    """Print what the values amount to and whether they reach what is wanted of mean and least; True without values."""
    if not values:
        print(f"  {'-':5} {name}: nothing measured")
        return True
    found_mean, found_least = geometric_mean(values), min(values)
    good = found_mean >= mean and found_least >= least
    wanted = [f"mean {mean:.2f}"] * (mean > 0) + [f"least {least:.2f}"] * (least > 0)
    print(
        f"  {'pass' if good else 'SHORT':5} {name}: {found_mean:.3f} (geometric mean of {len(values)}),"
        f" least {found_least:.3f}; wanted: {' and '.join(wanted)}"
    )
    return good
