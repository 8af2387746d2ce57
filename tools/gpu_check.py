#!/usr/bin/env python3
"""Builds, tests and measures the GPU path; scripts/gpu_check.sh calls it, docs/gpu.md explains it.

Each step is a process of its own with a time limit. What it finds goes to results.jsonl at once, its output to a file
of its own, so that a stop at any time leaves results. Exit status 0: nothing failed, and tests ran.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import gpu_table  # noqa: E402

# A step that has less time than this is left out.
LEAST_SECONDS = 5
# Processes that test at once on one device: most of their time goes into importing torch.
TEST_PROCESSES = max(1, min(8, (os.cpu_count() or 1) // 2))
# What compute-sanitizer says on a machine where it cannot work.
SANITIZER_CANNOT = ("not supported", "No attachable process", "Unable to", "error while loading")


@dataclass(frozen=True)
class Settings:
    """What was typed, and what follows from it."""

    out: Path
    build: Path
    emulate: bool
    rehearses_build: bool
    quick: bool
    rewrite_model: bool
    deadline: float

    @property
    def results(self) -> Path:
        return self.out / "results.jsonl"

    @property
    def registration(self) -> Path:
        """A folder for sys.path that tells torch of mlcc's entry points, as an installation would."""
        return self.out / "cache" / "registered"

    def environment(self) -> dict[str, str]:
        """Of every process: caches of its own, so that cold is cold."""
        env = dict(os.environ)
        for name in ("MLCC_LOGS", "MLCC_DUMP", "MLCC_DISABLE", "MLCC_GPU", "TORCH_LOGS"):
            env.pop(name, None)
        env["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(self.registration)])
        env["PYTHONUNBUFFERED"] = "1"
        env["MLCC_STRICT"] = "1"  # an internal error is a failure here, not a reason to run eagerly
        env["MLCC_CACHE_DIR"] = str(self.out / "cache" / "mlcc")
        env["TORCHINDUCTOR_CACHE_DIR"] = str(self.out / "cache" / "inductor")
        env["TRITON_CACHE_DIR"] = str(self.out / "cache" / "triton")
        env["MLCC_GPU_CHECK_RESULTS"] = str(self.results)
        env["HF_HUB_OFFLINE"] = "1"
        if self.emulate:
            env["MLCC_GPU"] = "emulate"
        if self.quick:
            env["MLCC_GPU_CHECK_QUICK"] = "1"
        return env


@dataclass(frozen=True)
class Ended:
    """How a process ended; `text` is what it printed."""

    status: int | None  # None: it ran past its limit
    text: str
    seconds: float

    @property
    def outcome(self) -> str:
        return {0: "passed", None: "timeout"}.get(self.status, "failed")

    @property
    def tail(self) -> str:
        return "\n".join(self.text.strip().splitlines()[-15:])


class Check:
    """One run of all steps."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        settings.out.mkdir(parents=True, exist_ok=True)
        settings.results.write_text("")
        shutil.rmtree(settings.out / "cache", ignore_errors=True)
        register(settings.registration)

    # -- what steps are made of

    def record(self, **fields: Any) -> None:
        """Append one line to results.jsonl."""
        with self.settings.results.open("a") as file:
            file.write(json.dumps(fields) + "\n")

    def run(
        self,
        log: str,
        command: Sequence[str],
        limit: float,
        environment: Mapping[str, str] | None = None,
    ) -> Ended:
        """Run a command; its output goes to LOG.log. At the limit, the process and its children are killed."""
        left = self.settings.deadline - time.monotonic()
        limit = max(1.0, min(limit, left))
        start = time.monotonic()
        path = self.settings.out / f"{log}.log"
        env = {**self.settings.environment(), **(environment or {})}
        with path.open("ab") as file:
            begin = file.tell()
            try:
                process = subprocess.Popen(
                    list(command),
                    cwd=ROOT,
                    env=env,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                return Ended(127, str(error), 0.0)
            status: int | None
            try:
                status = process.wait(limit)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                status = None
        text = path.read_bytes()[begin:].decode(errors="replace")
        return Ended(status, text, time.monotonic() - start)

    def step(self, name: str, work: Callable[[], tuple[str, str]]) -> None:
        """Do one step and record its outcome; whatever goes wrong in it stops no other."""
        left = self.settings.deadline - time.monotonic()
        print(f"== {name} ({left:.0f} s left)", flush=True)
        start = time.monotonic()
        if left < LEAST_SECONDS:
            outcome, detail = "skipped", "no time left"
        else:
            try:
                outcome, detail = work()
            except Exception as error:
                outcome, detail = "failed", f"{type(error).__name__}: {error}"
        seconds = time.monotonic() - start
        self.record(
            step=name, kind="step", outcome=outcome, detail=detail, seconds=round(seconds, 1)
        )
        print(f"   {outcome} in {seconds:.1f} s{': ' + detail if detail else ''}", flush=True)
        self.write_table()

    def python(self, log: str, arguments: Sequence[str], limit: float, **env: str) -> Ended:
        """`run` of this Python."""
        return self.run(log, [sys.executable, *arguments], limit, env)

    def write_table(self) -> dict[str, Any]:
        """The table and the summary of what is known so far."""
        records = gpu_table.read(self.settings.results)
        summary = gpu_table.summarize(records)
        (self.settings.out / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
        (self.settings.out / "table.md").write_text(gpu_table.render(records, summary))
        return summary

    # -- the steps

    def facts(self) -> tuple[str, str]:
        commands = {
            "nvidia-smi": [
                "nvidia-smi",
                "--query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit",
                "--format=csv,noheader",
            ],
            "g++": ["g++", "--version"],
            "cmake": ["cmake", "--version"],
            "ninja": ["ninja", "--version"],
            "ccache": ["ccache", "--version"],
            "compute-sanitizer": ["compute-sanitizer", "--version"],
            "commit": ["git", "rev-parse", "--short=12", "HEAD"],
        }
        for name, command in commands.items():
            ended = self.run("facts", command, 20)
            lines = [line for line in ended.text.splitlines() if line.strip()]
            value = lines[0].strip() if ended.status == 0 and lines else "not there"
            self.record(step="facts", kind="fact", name=name, value=value)
        ended = self.python("facts", [str(ROOT / "tools" / "gpu_facts.py")], 60)
        if ended.status != 0:
            return ended.outcome, ended.tail
        has_gpu = '"cuda is available": true' in ended.text
        if not has_gpu and not self.settings.emulate:
            return "failed", "torch sees no GPU"
        return "passed", ""

    def build(self) -> tuple[str, str]:
        is_apart = self.settings.emulate and self._imports()
        if is_apart and not self.settings.rehearses_build:
            return "skipped", "emulating, and mlcc is built; --only build rehearses it"
        build = self.settings.build
        configure = ["cmake", "-S", str(ROOT), "-B", str(build)]
        # A folder that is configured already keeps its generator.
        if shutil.which("ninja") and not (build / "CMakeCache.txt").exists():
            configure += ["-G", "Ninja"]
        options = {
            "CMAKE_BUILD_TYPE": "Release",
            "CMAKE_CXX_FLAGS_RELEASE": "-O2 -DNDEBUG",
            "MLCC_WITH_LLVM": "OFF",
            "MLCC_WITH_TESTS": "OFF",
            "MLCC_WERROR": "OFF",
            "Python_EXECUTABLE": sys.executable,
        }
        ended = self.run("build", [*configure, *(f"-D{k}={v}" for k, v in options.items())], 60)
        if ended.status != 0:
            return ended.outcome, ended.tail
        # Two translation units a core would need more memory than some machines have.
        jobs = str(os.cpu_count() or 1)
        targets = ["mlcc_package"] + (["mlcc_emulator"] if self.settings.emulate else [])
        limit = 3600 if self.settings.emulate else 240
        ended = self.run(
            "build",
            ["cmake", "--build", str(build), "--target", *targets, "--parallel", jobs],
            limit,
        )
        if ended.status != 0:
            return ended.outcome, ended.tail
        tree = build / "rehearsal" if is_apart else ROOT
        if is_apart:  # what is built already keeps its links
            ignored = shutil.ignore_patterns("*.so", "_build_info.py", "__pycache__")
            shutil.rmtree(tree, ignore_errors=True)
            shutil.copytree(ROOT / "mlcc", tree / "mlcc", ignore=ignored)
        link = ["tools/link_build.py", str(build), str(tree / "mlcc")]
        ended = self.python("build", link, 30)
        if ended.status != 0 or not self._imports(tree):
            return "failed", f"mlcc cannot be imported: {ended.tail}"
        return "passed", ""

    def _imports(self, tree: Path = ROOT) -> bool:
        """Whether mlcc runs from a source tree; records what `mlcc info` says."""
        ended = self.python("info", ["-P", "-m", "mlcc", "info"], 60, PYTHONPATH=str(tree))
        for line in ended.text.splitlines():
            if match := re.match(r"(torch built for|build id|gpu\S*(?: \w+)?)  +(.*)", line):
                self.record(step="facts", kind="fact", name=f"mlcc: {match[1]}", value=match[2])
        return ended.status == 0

    def ceilings(self) -> tuple[str, str]:
        arguments = ["benchmarks/gpu_ceilings.py"]
        if self.settings.rewrite_model:
            arguments.append("--rewrite-model")
        ended = self.python("ceilings", arguments, 60)
        return ended.outcome, "" if ended.status == 0 else ended.tail

    def tests(self) -> tuple[str, str]:
        """Each test function in a process of its own: an illegal access of one spoils the context for the others."""
        ended = self.python(
            "tests", ["-m", "pytest", "--collect-only", "-q", "-p", "no:xdist", "tests/gpu"], 60
        )
        groups = sorted(
            set(re.findall(r"^(tests/gpu/\S+?::\w+)", ended.text, flags=re.MULTILINE)),
            key=ended.text.index,
        )
        if not groups:
            return "failed", ended.tail
        batches = [groups] if self.settings.emulate else [[group] for group in groups]
        limit = 150 if not self.settings.emulate else 600
        with ThreadPoolExecutor(TEST_PROCESSES) as pool:
            results = list(pool.map(lambda batch: self._test(batch, limit), batches))
        bad = [name for name, ended in zip(batches, results, strict=True) if ended.status != 0]
        return ("failed", f"{len(bad)} of {len(batches)} groups") if bad else ("passed", "")

    def _test(self, nodes: Sequence[str], limit: float) -> Ended:
        name = nodes[0].rpartition("::")[2] if len(nodes) == 1 else "tests"
        options = ["-q", "-x" if len(nodes) == 1 else "-v", "-p", "no:cacheprovider"]
        ended = self.python(f"tests-{name}", ["-m", "pytest", *options, *nodes], limit)
        # A process that dies reports nothing itself.
        if ended.status not in (0, 1):
            self.record(
                step="tests", kind="test", name=name, outcome=ended.outcome, detail=ended.tail
            )
        return ended

    def sanitize(self) -> tuple[str, str]:
        if self.settings.emulate:
            return "skipped", "emulating"
        tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if not Path(tool).exists():
            return "skipped", "there is no compute-sanitizer"
        outcomes = {}
        for kind in ("memcheck", "racecheck"):
            command = [tool, "--tool", kind, "--error-exitcode", "9"]
            ended = self.run(
                f"sanitize-{kind}",
                [*command, sys.executable, "tests/gpu/sample.py"],
                50,
                {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
            )
            outcome, detail = ended.outcome, "" if ended.status == 0 else ended.tail
            # The sample's own tensors are not at fault if the tool does not work at all.
            if outcome == "failed" and any(word in ended.text for word in SANITIZER_CANNOT):
                outcome = "skipped"
            outcomes[kind] = outcome
            self.record(step="sanitize", kind="test", name=kind, outcome=outcome, detail=detail)
        text = ", ".join(f"{kind} {outcome}" for kind, outcome in outcomes.items())
        if "failed" in outcomes.values():
            return "failed", text
        return "passed" if "passed" in outcomes.values() else "skipped", text

    def benchmarks(self, rivals: str, limit: float) -> tuple[str, str]:
        """eager and mlcc beside some others. A process that has not much time left begins no further case."""
        limit = min(limit, self.settings.deadline - time.monotonic())
        arguments = ["benchmarks/gpu.py", "--rivals", rivals, "--seconds", f"{0.85 * limit:.0f}"]
        ended = self.python(f"benchmarks-{rivals or 'mlcc'}", arguments, limit)
        return ended.outcome, "" if ended.status == 0 else ended.tail


def register(folder: Path) -> None:
    """Write what importlib.metadata reads of an installed mlcc: its name and its entry points."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    info = folder / "mlcc-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0\n")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in rows.items())
        for group, rows in project["entry-points"].items()
    )
    (info / "entry_points.txt").write_text("\n".join(groups))


def parse(arguments: Sequence[str]) -> tuple[Settings, set[str]]:
    """The settings, and the names of the steps to do (empty: all)."""
    parser = argparse.ArgumentParser(prog="gpu_check.sh", description="prove the GPU path")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "build" / "gpu_check", help="folder of results"
    )
    parser.add_argument("--build", type=Path, default=ROOT / "build" / "gpu", help="build folder")
    parser.add_argument("--minutes", type=float, default=10, help="for everything")
    parser.add_argument("--quick", action="store_true", help="fewer cases, no TorchInductor")
    parser.add_argument(
        "--emulate", action="store_true", help="rehearse on CPU tensors and an emulated GPU"
    )
    parser.add_argument(
        "--rewrite-model",
        action="store_true",
        help="write what is measured to csrc/schedule/machines",
    )
    parser.add_argument("--only", default="", help="names of steps, comma separated")
    given = parser.parse_args(arguments)
    only = set(filter(None, given.only.split(",")))
    settings = Settings(
        out=given.out.resolve(),
        build=given.build.resolve(),
        emulate=given.emulate,
        rehearses_build="build" in only,
        quick=given.quick,
        rewrite_model=given.rewrite_model,
        deadline=time.monotonic() + 60 * given.minutes,
    )
    return settings, only


def main(arguments: Sequence[str]) -> int:
    """All steps; the exit status."""
    settings, only = parse(arguments)
    check = Check(settings)
    steps: dict[str, Callable[[], tuple[str, str]]] = {
        "facts": check.facts,
        "build": check.build,
        "ceilings": check.ceilings,
        "tests": check.tests,
        "sanitize": check.sanitize,
        "benchmarks": lambda: check.benchmarks("", 75),
    }
    if not settings.quick and not settings.emulate:
        # Their compile time is the risk, so they come last.
        steps["inductor"] = lambda: check.benchmarks("inductor", 150)
        steps["autotune"] = lambda: check.benchmarks("autotune", 600)
    for name in only - set(steps):
        sys.exit(f"error: no step {name}; there are {', '.join(steps)}")
    for name, work in steps.items():
        if not only or name in only:
            check.step(name, work)
    summary = check.write_table()
    print((settings.out / "table.md").read_text())
    print(f"results: {settings.out}")
    return 0 if summary["good"] else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
