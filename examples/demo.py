"""Real models through mlcc beside eager PyTorch, on the CPU with two threads: one table.

usage: demo.py [--only NAME[,NAME...]] [--quick] [--all-sizes] [--details] [--minutes N] [--json FILE] [--backend NAME]
               [--peers NAME[,NAME...]]

Each workload runs in two fresh processes that share private, at first empty caches: one cold, one warm. The cold one
also checks all outputs against float64, at two further sizes too, and compares the time per call with eager's in turns.
--peers (make demo PEERS=inductor) adds columns of other backends of torch.compile, which take their turns too.
The next processes build their models while this one is done with what is timed. No workload begins that would likely
end after --minutes; what is left out is told. The exit status is 1 for a wrong result or a crash and nothing else: how
fast a machine is, and what else it does, decides none.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parent.parent
WORKER = ROOT / "benchmarks" / "model_run.py"
NAMES = ("pointwise", "bert", "resnet", "training", "gpt2", "llama")
DETAILED_WIDTH = 150
LOGS = {"MLCC_LOGS", "TORCH_LOGS"}  # what they ask for is shown as it comes
WIDTH = 80  # columns of the table, where stdout is no terminal

# What the project promises; a figure beyond is marked in the table.
LEAST_RATIO = 0.97
LEAST_NODE_SHARE = 0.95  # outside matmul, convolution and attention calls
MOST_OWN_SECONDS = {"pointwise": 0.06}
MOST_OWN_SECONDS_OTHERS = 2.0
MOST_WARM_PART = 0.25

Json = dict[str, Any]


def main() -> int:
    """Run what was asked for; 1 if a result is wrong or a process failed."""
    arguments = _parse_arguments()
    console = Console(
        width=None if sys.stdout.isatty() else DETAILED_WIDTH if arguments.details else WIDTH
    )
    console.print(
        f"{', '.join(arguments.only)}: each in two processes, with empty caches and with full ones",
        highlight=False,
    )
    results: list[Json] = []
    budget = Budget(arguments.minutes)
    with tempfile.TemporaryDirectory(prefix="mlcc-demo-") as folder:
        processes = [
            Process(name, phase, arguments, Path(folder) / name)
            for name in arguments.only
            for phase in ("cold", "warm")
        ]
        for number, name in enumerate(arguments.only):
            if not budget.allows_another():
                break
            cold, warm = processes[2 * number : 2 * number + 2]
            following = processes[2 * number + 1 : 2 * number + 3]
            with console.status(f"{name} ...") as status:
                result = cold.run(status.update, following)
                if "error" not in result:
                    result["warm"] = warm.run(status.update, [])
            results.append(result)
            budget.took_one()
            console.print(_one_line(result), highlight=False)
        for process in processes:
            process.stop()
    console.print(_table(results, arguments.backend, arguments.peers, arguments.details))
    _print_problems(console, results)
    left_out = arguments.only[len(results) :]
    if left_out:
        text = f"left out after {arguments.minutes:g} minutes: {', '.join(left_out)}; --minutes 0 runs all"
        console.print(text, highlight=False)
    console.print(f"{budget.spent():.0f} s in all", highlight=False)
    if arguments.json:
        arguments.json.write_text(json.dumps({"backend": arguments.backend, "results": results}))
    return 0 if all(_is_sound(result) for result in results) else 1


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", type=_names, default=list(NAMES), help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="one size, short comparisons")
    parser.add_argument("--details", action="store_true", help="kernels, calls and memory, too")
    parser.add_argument(
        "--minutes", type=float, default=4.0, help="begin nothing that ends later; 0: run all"
    )
    parser.add_argument("--all-sizes", action="store_true", help="time them all; takes longer")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there too")
    parser.add_argument("--backend", default="mlcc", help="aot_eager runs a stand-in for mlcc")
    parser.add_argument("--peers", type=_peers, default=[], help="inductor, for example")
    return parser.parse_args()


def _peers(text: str) -> list[str]:
    from torch.compiler import list_backends

    known = list_backends(exclude_tags=())
    for name in text.split(","):
        if name not in known:
            raise argparse.ArgumentTypeError(
                f"{name} is no backend of torch.compile; known: {', '.join(known)} (make bench has other peers)"
            )
    return text.split(",")


def _names(text: str) -> list[str]:
    names = text.split(",")
    for name in names:
        if name not in NAMES:
            raise argparse.ArgumentTypeError(f"unknown workload {name}; known: {', '.join(NAMES)}")
    return names


class Budget:
    """The time that the demo may take, in minutes; 0 for any."""

    def __init__(self, minutes: float) -> None:
        self._seconds = minutes * 60
        self._start = self._last = time.monotonic()
        self._longest = 0.0

    def spent(self) -> float:
        """Seconds so far."""
        return time.monotonic() - self._start

    def took_one(self) -> None:
        """A workload is done."""
        now = time.monotonic()
        self._longest, self._last = max(self._longest, now - self._last), now

    def allows_another(self) -> bool:
        """Whether one that takes as long as the longest so far would end in time; the first one always may."""
        is_first = self._longest == 0
        return not self._seconds or is_first or self.spent() + self._longest <= self._seconds


# -- the processes


def _environment(folder: Path) -> dict[str, str]:
    """This process's, with caches in `folder`."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "MLCC_CACHE_DIR": str(folder / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "XDG_CACHE_HOME": str(folder / "xdg"),
    }


class Process:
    """One run of the worker, which builds its model and then waits for its turn."""

    def __init__(self, name: str, phase: str, arguments: argparse.Namespace, folder: Path) -> None:
        seconds, sizes = ("0.5", "1") if arguments.quick else ("2.5", "3")
        self._name = name
        self._label = f"{name}, {phase}"
        self._command = [sys.executable, str(WORKER), name, "--wait"]
        self._command += ["--phase", phase, "--backend", arguments.backend]
        self._command += ["--seconds", seconds, "--sizes", sizes]
        self._command += ["--peers", ",".join(arguments.peers)] if arguments.peers else []
        self._command += ["--compare-all"] if arguments.all_sizes else []
        self._environment = _environment(folder)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed with the process)
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> subprocess.Popen[str]:
        """Let it build its model."""
        if self._process is None:
            self._process = subprocess.Popen(
                self._command,
                env=self._environment,
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None if LOGS & os.environ.keys() else self._errors,
                text=True,
            )
        return self._process

    def stop(self) -> None:
        """End it, if it was started and has no turn."""
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def run(self, show: Callable[[str], None], following: list[Process]) -> Json:
        """The result, or {"error": its last words}. Starts the following ones when nothing is timed any more."""
        show(f"{self._label}: starting")
        process = self.start()
        result: Json | None = None
        assert process.stdin is not None
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith("{"):
                continue  # what a library prints
            record = json.loads(line)
            if "ready" in record:
                process.stdin.write("\n")
                process.stdin.flush()
            if record.get("timed") is False:
                for process_to_come in following:
                    process_to_come.start()
            if "progress" in record:
                show(f"{self._label}: {record['progress']}")
            result = record.get("result", result)
        if process.wait() == 0 and result is not None:
            return result
        self._errors.seek(0)
        text = _last_words(self._errors.read()) or f"exit status {process.returncode}"
        return {"name": self._name, "error": text}


def _last_words(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-12:])


# -- judging


def _is_sound(result: Json) -> bool:
    """Whether everything is right. What compiled when, and how fast it is, depends on the machine."""
    if "error" in result or "error" in result["warm"]:
        return False
    return all(check["right"] for check in result["checks"])


def _third_size(result: Json, key: str) -> int:
    """How many new_graphs or new_kernels the sizes after the second one needed."""
    return sum(check[key] for check in result["checks"][2:])


def _own_limit(name: str) -> float:
    return MOST_OWN_SECONDS.get(name, MOST_OWN_SECONDS_OTHERS)


# -- showing


def _one_line(result: Json) -> str:
    if "error" in result:
        return f"{result['name']}: [red]failed[/red]"
    ratio = result["comparison"]["ratio"]["compiled"]["median"]
    words = "right" if all(check["right"] for check in result["checks"]) else "[red]wrong[/red]"
    speeds = [f"{ratio:.2f}"]
    for check in result["checks"]:
        if "comparison" in check:
            speeds.append(f"{check['comparison']['ratio']['compiled']['median']:.2f}")
    return f"{result['title']}: {words}, {', '.join(speeds)} of eager's speed"


def _table(results: list[Json], backend: str, peers: list[str], details: bool) -> Table:
    title = f"{backend} beside eager PyTorch: float32, 2 threads, median of interleaved calls"
    caption = (
        "first call: all of it (our own part); speed: median of the turns' ratios;\n"
        "times are medians by themselves; red: beyond what is promised"
    )
    table = Table(title=title, caption=caption, padding=(0, 0, 0, 1))
    headings = ["workload", "sizes", "first call", "warm cache", "eager", backend, "speed"]
    if details:
        headings += ["kernels", "ATen calls", "node share", "arena"]
    for heading in (*headings, *(f"{name} (first call)" for name in peers)):
        justify: Literal["left", "right"] = "left" if heading == "workload" else "right"
        table.add_column(heading, justify=justify, no_wrap=heading == "speed")
    for result in results:
        table.add_row(*_row(result, details), *(_peer_cell(result, name) for name in peers))
    return table


def _row(result: Json, details: bool) -> list[str]:
    if "error" in result:
        return [result["name"], "[red]failed[/red]"]
    comparison = result["comparison"]
    ratio = comparison["ratio"]["compiled"]
    share = result["other_node_share"]
    cells = [
        result["title"],
        _checks_cell(result),
        _first_call_cell(result, _own_limit(result["name"])),
        _first_call_cell(result["warm"], MOST_WARM_PART * _own_limit(result["name"])),
        _milliseconds(comparison["seconds"]["eager"]["median"]),
        _milliseconds(comparison["seconds"]["compiled"]["median"]),
        _marked(f"{ratio['median']:.2f}", ratio["median"] < LEAST_RATIO),
    ]
    if details:
        cells += [
            str(result["kernels"]),
            str(result["aten_calls"]),
            _marked(f"{result['node_share']:.0%} ({share:.1%})", share < LEAST_NODE_SHARE),
            _bytes(result["arena_bytes"]),
        ]
    return cells


def _peer_cell(result: Json, name: str) -> str:
    """Its time per call, how many times eager's speed that is, and what the first call took with empty caches."""
    if "error" in result:
        return ""
    facts, comparison = result["peers"][name], result["comparison"]
    if not facts["right"]:
        return "[red]wrong or failed[/red]"
    seconds = comparison["seconds"][name]["median"]
    ratio = comparison["ratio"][name]["median"]
    return f"{_milliseconds(seconds)}, {ratio:.2f} ({facts['first_call_seconds']:.1f} s)"


def _checks_cell(result: Json) -> str:
    """The sizes, each wrong one marked."""
    cells = [_marked(str(check["size"]), not check["right"]) for check in result["checks"]]
    return f"{result['size_name']} {', '.join(cells)}"


def _first_call_cell(result: Json, limit: float) -> str:
    if "error" in result:
        return "[red]failed[/red]"
    own = _marked(f"{result['own_seconds']:.3f}", result["own_seconds"] > limit)
    return f"{result['first_call_seconds']:.2f} s ({own})"


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds < 1e-2 else f"{seconds * 1e3:.1f} ms"


def _bytes(count: int) -> str:
    return f"{count / 2**20:.1f} MiB" if count >= 2**20 else f"{count / 2**10:.0f} KiB"


def _marked(text: str, mark: bool) -> str:
    return f"[red]{text}[/red]" if mark else text


def _print_problems(console: Console, results: list[Json]) -> None:
    for result in results:
        for part in (result, result.get("warm", {})):
            if "error" in part:
                console.print(f"{result['name']}: {part['error']}", style="red", markup=False)
        for name, facts in result.get("peers", {}).items():
            if not facts["right"]:
                text = f"{result['name']}, {name}: {facts['reason']}"
                console.print(text, style="red", markup=False)
        for check in result.get("checks", []):
            if not check["right"]:
                where = f"{result['name']}, {result['size_name']}={check['size']}"
                console.print(f"{where}: {check['reason']}", style="red", markup=False)
    for text in filter(None, map(_missed_promises, results)):
        console.print(text, markup=False, highlight=False)


def _missed_promises(result: Json) -> str:
    """What is slower or later than promised, and how to look into it; '' where nothing is."""
    if "error" in result or "error" in result["warm"]:
        return ""
    missed = []
    ratio = result["comparison"]["ratio"]["compiled"]["median"]
    limit = _own_limit(result["name"])
    if ratio < LEAST_RATIO:
        missed.append(f"{ratio:.2f} of eager's speed")
    for part, most in ((result, limit), (result["warm"], MOST_WARM_PART * limit)):
        if part["own_seconds"] > most:
            missed.append(f"{part['own_seconds']:.2f} s of a first call (promised: {most:.2f})")
    if result["other_node_share"] < LEAST_NODE_SHARE:
        missed.append(
            f"{result['other_node_share']:.1%} of the nodes outside of contractions compiled"
        )
    if _third_size(result, "new_graphs"):
        kernels = _third_size(result, "new_kernels")
        missed.append(f"the third size was traced anew, {kernels} kernels compiled")
    if not missed:
        return ""
    look = f"MLCC_LOGS=perf,recompiles,fallback make demo DEMO_ARGS='--only {result['name']} --details'"
    return f"{result['name']}: {'; '.join(missed)}. To look into it: {look}"


if __name__ == "__main__":
    sys.exit(main())
