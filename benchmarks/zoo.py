"""Speed of the architectures of tests/models/zoo.py against eager, and their ATen calls beside TorchInductor's.

usage: python benchmarks/zoo.py [--models NAME[,NAME...]] [--phases inference,training] [--seconds S] [--cpu-time]
       [--fresh]

Each architecture has a process of its own, float32, one thread, the middle one of its three lengths; eager and mlcc
take turns. Then the nodes that are ATen calls are counted, and those that TorchInductor would call ATen for. Results
are appended to build/zoo-speed.jsonl, so a run that was stopped goes on where it was. The table ends with what is
slower than 0.97 of eager, and with what calls ATen more often than TorchInductor.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

from tests.arguments import names_among  # noqa: E402
from tests.models.zoo import ARCHITECTURES, LENGTHS, Architecture  # noqa: E402
from tests.store import Store  # noqa: E402

PHASES = ("inference", "training")
SLOW = 0.97


def main() -> int:
    """Measure what was asked for; the exit status is 1 if something failed."""
    arguments = _parse_arguments()
    if arguments.one:
        name, phase = arguments.one
        clock = time.process_time if arguments.cpu_time else time.perf_counter
        record = measure(ARCHITECTURES[name], phase == "training", arguments.seconds, clock)
        print(json.dumps(record))
        return 0
    store = Store(ROOT / "build" / "zoo-speed.jsonl", arguments.fresh)
    tasks = [(name, phase) for name in arguments.models for phase in arguments.phases]
    for task in tasks:
        if store.get(task) is None:
            store.append(task, _measure_apart(task, arguments))
        print(_row(task, store[task]), flush=True)
    failed = [task for task in tasks if "ratio" not in store[task]]
    measured = [task for task in tasks if task not in failed]
    slow = [task for task in measured if store[task]["ratio"] < SLOW]
    more_calls = [task for task in measured if store[task]["calls"] > store[task]["inductor_calls"]]
    print(f"{len(tasks)} measured, {len(failed)} failed")
    for text, chosen in (
        (f"below {SLOW} of eager's speed", slow),
        ("with more ATen calls than TorchInductor", more_calls),
    ):
        print(f"\n{len(chosen)} {text}")
        for task in chosen:
            print(_row(task, store[task]))
    return int(bool(failed))


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--models", type=names_among(ARCHITECTURES), default=list(ARCHITECTURES), help="only these"
    )
    parser.add_argument(
        "--phases", type=names_among(PHASES), default=list(PHASES), help="only these"
    )
    parser.add_argument("--seconds", type=float, default=1.5, help="for one comparison")
    parser.add_argument("--cpu-time", action="store_true", help="for a machine with other work")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--one", nargs=2, metavar=("NAME", "PHASE"), help=argparse.SUPPRESS)
    return parser.parse_args()


def _measure_apart(task: tuple[str, str], arguments: argparse.Namespace) -> dict[str, Any]:
    command = [sys.executable, __file__, "--one", *task, "--seconds", str(arguments.seconds)]
    if arguments.cpu_time:
        command.append("--cpu-time")
    environment = os.environ | {"MLCC_STRICT": "1"}  # a failure of ours is not measured as eager
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment)
    if done.returncode != 0:
        lines = done.stderr.splitlines()
        return {
            "reason": next((one for one in reversed(lines) if "Error" in one), done.stderr)[:300]
        }
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _row(task: tuple[str, str], record: dict[str, Any]) -> str:
    name = " ".join(task)
    if "ratio" not in record:
        return f"{name}: FAILED: {record['reason']}"
    return (
        f"{name}: {record['ratio']:.2f} of eager's speed ({record['eager_ms']:.2f} ms);"
        f" {record['calls']} of {record['nodes']} nodes are ATen calls, TorchInductor's {record['inductor_calls']}"
    )


def measure(
    architecture: Architecture, trains: bool, seconds: float, clock: Callable[[], float]
) -> dict[str, float]:
    """Of one step: {"ratio": eager's time through ours in the median, "eager_ms": eager's, "nodes": of its graphs,
    "calls": those that are ATen calls, "inductor_calls": as many for TorchInductor}."""
    import torch

    from benchmarks.harness import compare
    from benchmarks.inductor_calls import InductorObserver
    from benchmarks.observe import MlccObserver, summarize

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    model = architecture.build().train(trains)
    ours, inductor = MlccObserver(), InductorObserver()
    ours.stop_timing()
    compiled = torch.compile(model, backend=ours.backend)
    inputs = architecture.feed(model, LENGTHS[architecture.kind][1])

    def step(run: Any) -> None:
        with torch.set_grad_enabled(trains):
            outputs = [v for v in run(**inputs).values() if isinstance(v, torch.Tensor)]
        if trains:
            losses = [
                o.square().mean() for o in outputs if o.is_floating_point() and o.requires_grad
            ]
            torch.stack(losses).sum().backward()

    functions = {"eager": lambda: step(model), "mlcc": lambda: step(compiled)}
    comparison = compare(functions, seconds=seconds, warmup=3, clock=clock)
    counted = summarize(ours.graphs())
    torch._dynamo.reset()
    step(torch.compile(model, backend=inductor.backend))
    return {
        "ratio": comparison.ratio("mlcc").median,
        "eager_ms": 1e3 * comparison.spread("eager").median,
        "nodes": counted.nodes,
        "calls": counted.aten_calls,
        "inductor_calls": summarize(inductor.graphs()).aten_calls,
    }


if __name__ == "__main__":
    sys.exit(main())
