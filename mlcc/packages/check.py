"""Runs a package beside the model that it was made of."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from mlcc._errors import Error

_ROOT = Path(__file__).resolve().parent.parent.parent  # where `mlcc` is imported from

# By dtype: how far a result may be from eager's, as a share of the largest value of the tensor. Sums round in another
# order, and models are deep.
_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 3e-2,
    torch.bfloat16: 6e-2,
}


def check(
    path: Path, ep: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> float:
    """The largest error of the package's results on these arguments; Error where one is beyond its bound."""
    with torch.no_grad():
        expected = [
            value
            for value in pytree.tree_leaves(ep.module()(*args, **kwargs))
            if isinstance(value, torch.Tensor)
        ]
    given = [value for value in pytree.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    found = _run(path, given, expected)
    if len(found) != len(expected):
        raise Error(f"export: the package gives {len(found)} results, the model {len(expected)}")
    return max(
        (_error(i, a, b) for i, (a, b) in enumerate(zip(found, expected, strict=True))), default=0.0
    )


def _run(
    path: Path, inputs: Sequence[torch.Tensor], like: Sequence[torch.Tensor]
) -> list[torch.Tensor]:
    """What the package computes in a process of its own, which a fault of its code ends alone."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"{i}": _numbers(value) for i, value in enumerate(inputs)}
        numpy.savez(Path(folder) / "inputs.npz", **arrays)
        child = subprocess.run(
            [sys.executable, "-m", "mlcc.runtime", str(path.resolve()), "inputs.npz", "outputs.npz"],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(_ROOT)},
        )
        if child.returncode != 0:
            words = child.stderr.strip().splitlines()[-1:] or [f"status {child.returncode}"]
            raise Error(f"export: the package does not run: {words[0]}")
        with numpy.load(f"{folder}/outputs.npz") as found:
            results = [torch.from_numpy(found[str(i)]) for i in range(len(found))]
    return [
        value.view(torch.bfloat16) if want.dtype == torch.bfloat16 else value
        for value, want in zip(results, like, strict=False)
    ]


def _numbers(value: torch.Tensor) -> Any:
    plain = value.detach().contiguous()
    return (plain.view(torch.uint16) if value.dtype == torch.bfloat16 else plain).numpy()


def _error(index: int, found: torch.Tensor, expected: torch.Tensor) -> float:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise Error(
            f"export: result {index} is {found.dtype} {list(found.shape)}, the model's"
            f" {expected.dtype} {list(expected.shape)}"
        )
    tolerance = _TOLERANCE.get(expected.dtype)
    if tolerance is None:
        differing = int((found != expected).sum())
        if differing:
            raise Error(f"export: result {index} differs from the model's in {differing} elements")
        return 0.0
    a, b = found.double(), expected.double()
    is_alike = torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    largest = b[b.isfinite()].abs().max().item() if bool(b.isfinite().any()) else 0.0
    distance = torch.where(is_alike, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    error = distance.max().item() / max(largest, torch.finfo(expected.dtype).tiny) if len(distance.view(-1)) else 0.0
    if error > tolerance:
        raise Error(
            f"export: result {index} is wrong: its error is {error:.1e} of the largest value, allowed are"
            f" {tolerance:.0e}"
        )
    return error
