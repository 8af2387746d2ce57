"""Reproducers of internal errors: a folder with the graph; with tensor data only where the user asks for it."""

from __future__ import annotations

import itertools
import operator
import os
import shutil
import time
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.fx import GraphModule

from mlcc import config
from mlcc._load import load_core
from mlcc.importer import fx_graph
from mlcc.ir.op_table import OpTable
from mlcc.torch_private import tracing

KEPT = 20
_PREFIX = "repro-"

_numbers = itertools.count()


def write(
    gm: GraphModule, kind: str, error: BaseException, options: Mapping[str, Any]
) -> Path | None:
    """Write a folder (mode 0700) with the error, the ATen graph and the graph IR, and remove all but the newest 20.

    With the option `repro_data` also the tensors that the graph holds. None where it cannot be written.
    """
    parent = config.dump_directory(options)
    if parent is None:
        return None
    try:
        target = _make_folder(parent)
        text = "".join(traceback.format_exception(error))
        (target / "error.txt").write_text(f"{kind} graph\n{_options_text(options)}\n{text}")
        (target / "aten.py").write_text(gm.print_readable(print_output=False))
        (target / "graph.mlcc").write_text(_graph_text(gm, kind))
        if options.get("repro_data"):
            _save(_constants(gm), target / "constants.pt")
        _remove_old(target.parent)
    except OSError:
        return None
    return target


def _make_folder(parent: Path) -> Path:
    parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    stem = f"{_PREFIX}{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
    target = parent / f"{stem}-{next(_numbers):06d}"
    target.mkdir(mode=0o700)
    return target


def _options_text(options: Mapping[str, Any]) -> str:
    return "\n".join(f"{name} = {value!r}" for name, value in sorted(options.items()))


def _graph_text(gm: GraphModule, kind: str) -> str:
    """The graph IR, or why there is none."""
    core = load_core()
    builder = core.GraphBuilder(kind)
    try:
        fx_graph.import_graph(gm, builder, OpTable(core.op_table()))
        return str(builder.print())
    except Exception as error:  # what failed may well be the import
        return f"// no graph: {type(error).__name__}: {error}\n"


def _save(tensors: dict[str, torch.Tensor], path: Path) -> None:
    try:
        torch.save(tensors, path)
    except RuntimeError as error:  # of torch's own writer, for a full disk among others
        raise OSError(str(error)) from error


def _constants(gm: GraphModule) -> dict[str, torch.Tensor]:
    names = [str(node.target) for node in gm.graph.nodes if node.op == "get_attr"]
    values = {name: operator.attrgetter(name)(gm) for name in names}
    with tracing.outside_fake_mode():
        return {n: v.detach().clone() for n, v in values.items() if isinstance(v, torch.Tensor)}


def _remove_old(parent: Path) -> None:
    found = sorted(path for path in parent.iterdir() if path.name.startswith(_PREFIX))
    for path in found[:-KEPT]:
        shutil.rmtree(path, ignore_errors=True)
