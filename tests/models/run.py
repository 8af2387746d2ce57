"""Every architecture of the zoo, compiled, against eager: right in inference and training, in three dtypes.

usage: run.py [--models NAME[,NAME...]] [--ways WAY[,WAY...]] [--backend NAME] [--warm] [--fresh]

Each architecture has a process of its own, forked from one that has compiled a model; one that crashes or takes too
long fails in all ways that it did not answer. Results are appended to build/models-<backend>.jsonl, so a run that was
stopped goes on where it was. With --warm each model runs again after a reset and in a new process on the caches of the
first (tests/warm.py). The table gives, per model, the ATen calls among the nodes of its graphs, and what ran
eagerly; at its end stand the ops called, with their reasons. The exit status is 1 if something failed.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

from tests.arguments import names_among  # noqa: E402
from tests.models.check import WAYS, Record, check_ways  # noqa: E402
from tests.models.zoo import ARCHITECTURES  # noqa: E402
from tests.store import Store  # noqa: E402
from tests.warm import Caches, difference, without_digests  # noqa: E402


def main() -> int:
    """Run what was asked for and print the table; the exit status."""
    arguments = _parse_arguments()
    names, ways = arguments.models or list(ARCHITECTURES), arguments.ways
    name = f"models-{arguments.backend}{'-warm' * arguments.warm}.jsonl"
    store = Store(ROOT / "build" / name, arguments.fresh)
    with tempfile.TemporaryDirectory(prefix="mlcc-models-") as folder:
        os.environ.update(
            MLCC_STRICT="1",
            MLCC_MEASURE="0",
            MLCC_CACHE_DIR=folder,
            TORCHINDUCTOR_CACHE_DIR=f"{folder}/torch",
        )
        _warm_up(arguments.backend)
        for name in names:
            left = [way for way in ways if store.get((name, way)) is None]
            run = run_twice if arguments.warm else run_model
            for way, record in run(name, left, arguments.backend, arguments.timeout):
                store.append((name, way), record)
                print(_row(name, way, record), flush=True)
    records = [(name, way, store[name, way]) for name in names for way in ways]
    return print_report(records)


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--models", type=names_among(ARCHITECTURES), help="only these")
    parser.add_argument("--ways", type=names_among(WAYS), default=list(WAYS), help="only these")
    parser.add_argument("--backend", default="mlcc")
    parser.add_argument("--warm", action="store_true", help="and again, on the caches of the first")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--timeout", type=float, default=900.0, help="seconds for one model")
    return parser.parse_args()


def _warm_up(backend: str) -> None:
    """Let the first compilation of this process import what all forks of it need: more than half of their time."""
    for _ in check_ways("distilbert", ["training float32"], backend):
        pass


def run_twice(
    name: str, ways: Sequence[str], backend: str, timeout: float
) -> Iterator[tuple[str, Record]]:
    """Each way with its record, cold and then by a process that finds the caches warm."""
    cold, warm = (
        dict(run_model(name, ways, backend, timeout, caches))
        for caches in (Caches.COLD, Caches.WARM)
    )
    for way, record in cold.items():
        again = warm[way]
        if not record["reason"]:
            record["reason"] = again["reason"] or difference(record, again)
        yield way, without_digests(record)


def run_model(
    name: str,
    ways: Sequence[str],
    backend: str,
    timeout: float,
    caches: Caches = Caches.NONE,
) -> Iterator[tuple[str, Record]]:
    """Each way with its record, from a process of its own."""
    if not ways:
        return
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(sender, name, ways, backend, caches))
    process.start()
    sender.close()
    deadline = time.monotonic() + timeout
    answered = set()
    reason = f"no answer within {timeout:.0f} s"
    try:
        while receiver.poll(max(0.0, deadline - time.monotonic())):
            way, record = receiver.recv()
            answered.add(way)
            yield way, record
    except EOFError:
        process.join()
        reason = f"exit status {process.exitcode}"
    process.kill()
    process.join()
    for way in ways:
        if way not in answered:
            yield way, {"reason": reason}


def _answer(
    sender: Connection, name: str, ways: Sequence[str], backend: str, caches: Caches
) -> None:
    for answer in check_ways(name, ways, backend, caches):
        sender.send(answer)
    sender.close()


def _row(name: str, way: str, record: Record) -> str:
    if record["reason"]:
        return f"{name} {way}: WRONG: {record['reason']}"
    eager = record["eager_graphs"]
    calls = f"{record['aten_calls']} of {record['nodes']} nodes are ATen calls"
    eagerly = f", {len(eager)} graphs run eagerly" if eager else ""
    return f"{name} {way}: {_verdict(record)}, {calls}{eagerly}"


def _verdict(record: Record) -> str:
    if not record["unsteady"]:
        return "right"
    return f"right as eager with other roundings is ({record['unsteady']})"


def print_report(records: Sequence[tuple[str, str, Record]]) -> int:
    """Failures, reasons of eager graphs, totals; the exit status."""
    wrong = [one for one in records if one[2]["reason"]]
    reasons = sorted({text for *_, record in records for text in record.get("eager_graphs", [])})
    for name, way, record in wrong:
        print(_row(name, way, record))
    for text in reasons:
        print(text)
    _print_calls([record for *_, record in records])
    calls = sum(record.get("aten_calls", 0) for *_, record in records)
    nodes = sum(record.get("nodes", 0) for *_, record in records)
    print(
        f"{len(records) - len(wrong)} of {len(records)} right; {calls} of {nodes} nodes are ATen calls;"
        f" {len(reasons)} reasons to run a graph eagerly"
    )
    return int(bool(wrong))


def _print_calls(records: Sequence[Record]) -> None:
    """The ops that stayed ATen calls, most calls first, in how many models, and why."""
    calls: collections.Counter[str] = collections.Counter()
    ways: collections.Counter[str] = collections.Counter()
    reasons: collections.defaultdict[str, set[str]] = collections.defaultdict(set)
    for record in records:
        calls.update(record.get("aten_ops", {}))
        ways.update(record.get("aten_ops", {}).keys())
        for op, reason in record.get("call_reasons", []):
            reasons[op].add(reason)
    for op, count in calls.most_common():
        print(f"{op}: {count} calls, {ways[op]} runs: {'; '.join(sorted(reasons[op]))}")


if __name__ == "__main__":
    sys.exit(main())
