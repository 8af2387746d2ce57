"""`mlcc.export`: a model as one file that runs without Python."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mlcc import config
from mlcc._errors import Error
from mlcc._load import load_core
from mlcc._version import __version__
from mlcc.packages import bundle
from mlcc.packages import check as checks
from mlcc.packages.program import Program, exported, plain_arguments, program_of, user_dims


@dataclass(frozen=True)
class Exported:
    """What `export` wrote."""

    path: Path
    file_bytes: int
    code_bytes: int
    weight_bytes: int
    arena_bytes: int  # that a call needs beside the outputs
    kernels: int
    largest_error: float | None  # beside eager, as a share of the largest value; None: not checked

    def __str__(self) -> str:
        told = [
            f"{self.path}: {self.kernels} kernels in {self.code_bytes / 1024:.0f} KiB of code",
            f"{self.weight_bytes / 2**20:.1f} MiB of weights",
            f"an arena of {self.arena_bytes / 2**20:.1f} MiB",
        ]
        if self.largest_error is not None:
            told.append(f"largest error {self.largest_error:.1e}")
        return ", ".join(told)


def export(
    model: Any,
    args: Sequence[Any],
    path: str | os.PathLike[str],
    *,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    target: str = "native",
    threads: int = 1,
    format: str = "package",  # noqa: A002: the word that users expect
    weights: str = "packed",
    refit: bool = False,
    check: bool = True,
) -> Exported:
    """Compile `model` for `args` and `kwargs` and write it as one file, a package.

    The file runs from C (mlcc_runtime.h) and from Python without torch (`mlcc.runtime.load`), and in a process with
    torch takes tensors (`mlcc.load`). It holds code for the ops of the model, its weights in the order that the code
    reads them, and a manifest.

    model: a module in evaluation mode, or a torch.export.ExportedProgram.
    dynamic_shapes: which sizes vary, as torch.export.export takes it. All others are those of the arguments.
    target: the CPU that code is made for: "native", this one, or a name such as "x86-64-v3", "sapphirerapids" or
        "neoverse-n1", for which nothing of this machine is asked. Two exports for a named target are equal byte by
        byte.
    threads: that kernels are cut into parts for, where the program that runs the package has several.
    format: "package", or "bundle": PATH.o, an object file with the one function NAME_run, and PATH.h, which declares
        it, where NAME is the last part of `path`. It calls nothing, neither a runtime nor a C library, and takes its
        memory from the caller. Sizes are fixed.
    weights: "packed": in the file, in the order in which code reads them; "external", of a bundle: in PATH.weights,
        which the program maps or reads itself.
    refit: whether programs that run the package may exchange its weights (`refit` of a loaded package,
        mlcc_package_refit), by the names of `model.state_dict()`. The file is some KB larger for that: it holds the
        code that packs them.
    check: run the file in a process of its own, for these arguments and for others at the ends of the ranges of sizes
        (up to three times the arguments' own), and compare its results with those of `model`. What is wrong raises, and
        leaves no file. Error where this machine does not run the code.

    Raises Error where the model does what a package cannot: ops without kernels (all of them are listed), sizes that
    data tells, writes into arguments or buffers, calls of Python.
    """
    _check_form(format, weights, refit)
    path = Path(path)
    if not path.parent.is_dir():
        raise Error(f"export: {path.parent}: no such folder")
    args, kwargs = plain_arguments(args, kwargs or {})
    ep = exported(model, args, kwargs, dynamic_shapes)
    program = program_of(ep, user_dims(ep, model, args, kwargs, dynamic_shapes))
    options = _options(target, threads)
    cpu = load_core().cpu_info(options)
    if format == "bundle" and program.symbols:
        raise Error("export: sizes of a bundle are fixed\n  remedy: no dynamic_shapes")
    if check and "cannot_run" in cpu:
        raise Error(
            f"export: this machine does not run code for {target}, so the package cannot be checked\n"
            "  remedy: check=False"
        )
    executable = load_core().compile(program.builder, options, for_file=True, with_recipes=refit)
    _check_has_no_calls(executable, program)
    arena_bytes = _arena_bytes(program, executable)
    largest_error = None
    unchecked = path.with_name(f"{path.name}.{os.getpid()}.unchecked")
    try:
        if check or format == "package":
            facts = _write(unchecked, program, executable, options, cpu["name"], refit)
        if check:
            largest_error = checks.check(
                unchecked, model, ep, args, kwargs, _ranges(program), program.output_tree
            )
        if format == "package":
            unchecked.replace(path)
        else:
            path = path.with_suffix("") if path.suffix == ".o" else path
            facts = load_core().make_bundle(
                executable,
                bundle.c_name(path.name),
                weights == "packed",
                program.inputs,
                program.input_names,
                program.output_names,
                options,
            )
            arena_bytes = facts["arena_bytes"]
            path = bundle.write(path, facts)[0]
    finally:
        unchecked.unlink(missing_ok=True)
    return Exported(
        path,
        path.stat().st_size,
        facts["code_bytes"],
        facts["weight_bytes"],
        arena_bytes,
        executable.stats["kernels"],
        largest_error,
    )


def _write(
    path: Path,
    program: Program,
    executable: Any,
    options: Mapping[str, Any],
    cpu: str,
    refit: bool,
) -> dict[str, Any]:
    """A package of the program."""
    facts: dict[str, Any] = load_core().write_package(
        executable,
        os.fspath(path),
        lambda facts: json.dumps(_manifest(program, executable, options, cpu, facts), indent=1),
        program.inputs,
        program.input_names,
        program.output_names,
        program.symbols,
        program.conditions,
        options,
        program.weight_names if refit else None,
    )
    return facts


def _check_form(format: str, weights: str, refit: bool) -> None:  # noqa: A002: as in `export`
    if format not in ("package", "bundle"):
        raise Error(f"export: found format {format!r}, expected package or bundle")
    if weights not in ("packed", "external"):
        raise Error(f"export: found weights {weights!r}, expected packed or external")
    if format == "package" and weights == "external":
        raise Error("export: weights of a package are packed\n  remedy: format='bundle'")
    if format == "bundle" and refit:
        raise Error("export: a bundle cannot be refitted\n  remedy: weights='external'")


def _ranges(program: Program) -> dict[str, tuple[int, int | None]]:
    """Of sizes that vary, by torch's names of their symbols."""
    facts = program.imported.symbols
    return {facts[name].name: (low, high) for name, _, low, high in program.symbols}


def _arena_bytes(program: Program, executable: Any) -> int:
    """For the arguments' sizes."""
    return int(executable.arena_bytes_of(_hints(program)))


def _hints(program: Program) -> dict[str, int]:
    """The sizes of the arguments, by the graph's names of the symbols."""
    return {name: facts.hint or 0 for name, facts in program.imported.symbols.items()}


def _options(target: str, threads: int) -> dict[str, Any]:
    if not isinstance(threads, int) or threads < 1:
        raise Error(f"export: found {threads!r} threads, expected at least 1")
    return {
        **config.resolve(),
        "cpu": "" if target == "native" else target,
        "num_threads": threads,
        "library": False,
        "prefer": "code",
        "measure": False,
        "weights": "keep",
        "pack_weights": True,
        "verify": "off",
    }


def _check_has_no_calls(executable: Any, program: Program) -> None:
    calls = sorted(
        {step.removeprefix("call ") for step in executable.steps if step.startswith("call")}
    )
    if not calls:
        return
    reasons = {name: reason for name, _, reason in program.imported.told}
    lines = []
    for name in calls:
        reason = reasons.get(name, "")
        place = program.lines.get(name, "")
        lines.append(
            f"  {name}" + (f": {reason}" if reason else "") + (f" ({place})" if place else "")
        )
    raise Error("export: there is no kernel for these ops\n" + "\n".join(lines))


def _manifest(
    program: Program,
    executable: Any,
    options: Mapping[str, Any],
    cpu: str,
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    hints = _hints(program)
    return {
        "format": 1,
        "mlcc": __version__,
        "torch": torch.__version__,
        "target": {"cpu": cpu},
        "threads": options["num_threads"],
        "sizes": {
            shown: {"min": low, "max": high, "usual": hints[name]}
            for name, shown, low, high in program.symbols
        },
        "arena_bytes": _arena_bytes(program, executable),
        "stack_bytes": facts["stack_bytes"],
        "input_tree": program.input_tree,
        "output_tree": program.output_tree,
        "kernels": executable.kernels(hints),
    }
