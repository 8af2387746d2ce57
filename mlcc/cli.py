"""The command line: `python -m mlcc info | doctor | cache | export | inspect | run | bench`."""

from __future__ import annotations

import argparse
import functools
import importlib
import importlib.metadata
import os
import platform
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mlcc import config, doctor, package_commands
from mlcc._environment import AUTO, BESIDE_OPTIONS
from mlcc._errors import Error
from mlcc._load import built_torch_version, load_core
from mlcc._version import __version__

_SUITE = Path(__file__).resolve().parent.parent / "benchmarks" / "suite.py"


def _commit() -> str:
    """The commit of the source tree that this package stands in, else the one it was built from, else ''."""
    git = Path(__file__).resolve().parent.parent / ".git"
    try:
        head = (git / "HEAD").read_text().strip()
        if not head.startswith("ref: "):
            return head[:12]
        name = head.removeprefix("ref: ")
        if (git / name).exists():
            return (git / name).read_text().strip()[:12]
        for line in (git / "packed-refs").read_text().splitlines():
            if line.endswith(" " + name):
                return line[:12]
    except OSError:
        pass
    try:
        return str(importlib.import_module("mlcc._build_info").COMMIT)
    except (ImportError, AttributeError):
        return ""


def _torch_version() -> str:
    try:
        import torch
    except ImportError as error:
        return f"not found ({error})"
    return str(torch.__version__)


def _print_rows(rows: Sequence[tuple[str, Any]]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, value in rows:
        print(f"{name:<{width}}  {value}")


def _cpu_rows(core: Any) -> list[tuple[str, Any]]:
    try:
        info = core.cpu_info()
    except Error as error:  # a build for GPUs alone has no code generator for the CPU
        return [("cpu", f"none: {error}")]
    rows: list[tuple[str, Any]] = []
    for name, value in info.items():
        text = value if isinstance(value, str | int | float) else " ".join(map(str, value))
        rows.append(("cpu" if name == "name" else f"cpu {name}", text))
    return rows


def _gpu_rows(info: Any) -> list[tuple[str, Any]]:
    if "reason" in info:
        return [("gpu", f"none: {info['reason']}")]
    return [("gpu" if name == "name" else f"gpu {name}", value) for name, value in info.items()]


def run_info(arguments: argparse.Namespace) -> int:
    """Print versions, the CPU, and every option with its value and where the value comes from."""
    del arguments
    commit = _commit()
    rows: list[tuple[str, Any]] = [
        ("mlcc", __version__ + (f" (commit {commit})" if commit else "")),
        ("python", platform.python_version()),
        ("torch found", _torch_version()),
        ("torch built for", built_torch_version() or "not built"),
    ]
    try:
        core = load_core()
    except (Error, ImportError) as error:
        _print_rows(rows)
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows.append(("build id", core.build_id()))
    rows += _cpu_rows(core)
    rows += _gpu_rows(core.gpu_info())
    rows.append(("cache folder", config.cache_directory() or "none: there is no home"))
    _print_rows(rows)
    print("\noptions (code: part of every cache key)")
    for option in config.table().values():
        value = getattr(config, option.name)
        shown = repr(value) if isinstance(value, str) else value
        print(
            f"  {option.name} = {shown}  [{config.origin(option.name)}; {option.env}; {option.option_class}]"
        )
        print(f"      {option.help}")
    for name, text in BESIDE_OPTIONS.items():
        print(f"  {name}, in the environment alone: {text}")
    return 0


def run_cache(arguments: argparse.Namespace) -> int:
    """Print what the disk store holds; with --clear, empty it first; or save or load all caches that are on disk."""
    if arguments.action is not None:
        if arguments.clear:
            raise Error("cache: --clear goes with neither save nor load")
        import mlcc

        call = mlcc.save_cache if arguments.action == "save" else mlcc.load_cache
        _print_rows(list(call(arguments.path).items()))
        return 0
    core = load_core()
    if arguments.clear:
        core.clear_cache()
    rows: list[tuple[str, Any]] = [("dir", config.cache_directory() or "none: there is no home")]
    rows += [(name, value) for name, value in core.cache_info().items() if name != "dir"]
    _print_rows(rows)
    return 0


def run_doctor(arguments: argparse.Namespace) -> int:
    """Print what works and what does not, one line each; 1 where something does not."""
    return doctor.report(doctor.examine(), arguments.json)


def run_program(arguments: argparse.Namespace) -> int:
    """Become `python <options>`, with mlcc as the default backend of torch.compile; does not return.

    mlcc.Error where torch would not ask mlcc: without its entry point, or where the environment switches those off.
    """
    remedy = "call torch.compiler.set_default_backend('mlcc') in the program"
    if os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD", "1") != "1":
        raise Error(f"run: TORCH_DEVICE_BACKEND_AUTOLOAD is not 1; unset it, or {remedy}")
    if "mlcc" not in importlib.metadata.entry_points(group="torch.backends").names:
        raise Error(f"run: mlcc is not installed, only on the path; install it, or {remedy}")
    os.environ[AUTO] = "1"
    sys.stdout.flush()
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    os.execv(sys.executable, [sys.executable, *flags, *arguments.options])


def run_bench(arguments: argparse.Namespace) -> int:
    """Run the benchmarks of the checkout that this package stands in."""
    if not _SUITE.exists():
        raise Error(
            "bench runs the benchmarks of a checkout, which an installed wheel does not hold: "
            "in mlcc's source run `make bench`, or install it with pip install --editable"
        )
    sys.argv = [str(_SUITE), *arguments.options]
    runpy.run_path(str(_SUITE), run_name="__main__")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    argv = list(sys.argv[1:] if argv is None else argv)
    program: list[str] = []
    if argv[:1] in (["run"], ["bench"]) and package_commands.is_model(argv[1:]):
        call = package_commands.run_model if argv[0] == "run" else package_commands.bench_model
        return _status(functools.partial(call, argv[1:]))
    if argv[:1] == ["run"] and argv[1:2] not in (["-h"], ["--help"]):
        argv, program = argv[:1], argv[1:]  # as Python reads it: no option there is ours
    parser = argparse.ArgumentParser(prog="mlcc", description="a JIT compiler for PyTorch")
    parser.add_argument("--version", action="version", version=f"mlcc {__version__}")
    commands = parser.add_subparsers(
        dest="command",
        required=True,
        metavar="info | doctor | cache | export | inspect | run | bench",
    )
    info = commands.add_parser("info", help="versions, CPU, options with their values and origins")
    info.set_defaults(run=run_info)
    check = commands.add_parser("doctor", help="whether this installation works, and if not, why")
    check.add_argument("--json", action="store_true", help="as JSON, for programs")
    check.set_defaults(run=run_doctor)
    cache = commands.add_parser("cache", help="folder, entries and bytes of the kernel cache")
    cache.add_argument("--clear", action="store_true", help="empty it first")
    actions = cache.add_subparsers(dest="action", metavar="save | load")
    save = actions.add_parser("save", help="write kernels, graphs and frames to one file")
    save.add_argument("path", help="the file")
    load = actions.add_parser(
        "load", help="take what `save` wrote elsewhere; only from whom you trust"
    )
    load.add_argument("path", help="the file")
    cache.set_defaults(run=run_cache)
    package_commands.add_export(commands)
    package_commands.add_inspect(commands)
    run = commands.add_parser(
        "run",
        usage="mlcc run (script.py | -m module | -c code) [arguments ...]\n"
        "       mlcc run (model.mlcc | model.onnx) [options]",
        help="a program, unchanged, with mlcc as the default backend; or a package or model of ONNX",
    )
    run.set_defaults(run=run_program)
    bench = commands.add_parser(
        "bench",
        add_help=False,
        help="a package or model of ONNX, or memory-bound workloads; has options",
    )
    bench.set_defaults(run=run_bench)
    arguments, options = parser.parse_known_args(argv)
    if options and arguments.command != "bench":
        parser.error(f"unrecognized arguments: {' '.join(options)}")
    if arguments.command == "run" and not program:
        run.error("expected a script, -m and a module, or -c and code")
    arguments.options = program or options
    return _status(lambda: arguments.run(arguments))


def _status(call: Callable[[], int]) -> int:
    try:
        return call()
    except Error as error:
        print(f"mlcc: {error}", file=sys.stderr)
        return 1
