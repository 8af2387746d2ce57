"""Runs a package beside the model that it was made of."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.export import ExportedProgram

from mlcc._errors import Error
from mlcc.runtime import trees
from mlcc.torch_private import exporting

_ROOT = Path(__file__).resolve().parent.parent.parent  # where `mlcc` is imported from

# By dtype: how far a result may be from eager's, as a share of the largest value of the tensor. Sums round in another
# order, and models are deep.
_TOLERANCE = {
    torch.float64: 1e-9,
    torch.float32: 1e-3,
    torch.float16: 3e-2,
    torch.bfloat16: 6e-2,
}


# Of sizes without a greatest value, and of those that are larger: so many times the size of the arguments are tried.
_MOST_TIMES = 3

Ranges = Mapping[str, tuple[int, int | None]]


def check(
    path: Path,
    model: Any,
    ep: ExportedProgram,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    ranges: Ranges,
    output_tree: Mapping[str, Any],
) -> float:
    """The largest error of the package's results; Error where one is beyond its bound.

    On these arguments, and on such that are made of them: at the ends of each range of sizes (`ranges`, by torch's
    names of the symbols).
    """
    run = ep.module() if model is ep else model
    try:
        largest = _largest_error(path, run, output_tree, tuple(args), dict(kwargs))
    except _ModelRefusesError as refusal:
        raise Error(
            f"export: the model raises on these arguments: {refusal.__cause__}"
        ) from refusal
    for arguments in _at_corners(ep, args, kwargs, ranges):
        try:
            error = _largest_error(path, run, output_tree, *arguments)
        except (_ModelRefusesError, _PackageRefusesError):
            continue
        largest = max(largest, error)
    return largest


class _ModelRefusesError(Exception):
    """The model itself raises for such sizes."""


class _PackageRefusesError(Error):
    """The package does, since the trace assumed something else of them."""


def _largest_error(
    path: Path,
    run: Callable[..., Any],
    output_tree: Mapping[str, Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> float:
    given = [
        value for value in exporting.tree_leaves((args, kwargs)) if isinstance(value, torch.Tensor)
    ]
    try:
        with torch.no_grad():
            results = exporting.tree_leaves(run(*args, **kwargs))
    except Exception as error:
        raise _ModelRefusesError from error
    expected = [value for value in results if isinstance(value, torch.Tensor)]
    results = _run(path, given)
    found = [results[number] for number in trees.numbers(output_tree)]
    if len(found) != len(expected):
        raise Error(f"export: the package gives {len(found)} results, the model {len(expected)}")
    # A result in f64 may be computed of what f32 rounded.
    is_double = all(x.dtype == torch.float64 for x in given if x.dtype.is_floating_point)
    least = 0.0 if is_double else _TOLERANCE[torch.float32]
    errors = [
        _error(i, a.view(b.dtype) if b.dtype == torch.bfloat16 else a, b, least)
        for i, (a, b) in enumerate(zip(found, expected, strict=True))
    ]
    return max(errors, default=0.0)


def _at_corners(
    ep: ExportedProgram, args: Sequence[Any], kwargs: Mapping[str, Any], ranges: Ranges
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Arguments with all sizes at their least, with all at their greatest, and with each alone at its least."""
    leaves, structure = exporting.tree_flatten((tuple(args), dict(kwargs)))
    shapes = exporting.input_shapes(ep)
    hints = exporting.hints(ep)
    sizes = {name: hints[name] for name in ranges if name in hints}
    low = {name: max(ranges[name][0], 1) for name in sizes}
    high = {
        name: min(ranges[name][1] or _MOST_TIMES * hint, _MOST_TIMES * hint)
        for name, hint in sizes.items()
    }
    corners = [low, high, *({**sizes, name: low[name]} for name in sizes)]
    for corner in {tuple(corner.items()): corner for corner in corners if corner}.values():
        made = [
            leaf if shape is None else _resized(leaf, exporting.sizes_at(shape, corner))
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        arguments, keywords = exporting.tree_unflatten(made, structure)
        yield arguments, keywords


def _resized(value: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """Another size with values of the same kind: those of the tensor, again and again."""
    for dim, size in enumerate(sizes):
        if value.shape[dim] == size:
            continue
        count = max(value.shape[dim], 1)
        place = torch.arange(size)
        value = value.index_select(dim, place % count)
        if value.dtype.is_floating_point:  # no two are equal for that
            factor = (1 + 0.01 * (place // count)).to(value.dtype)
            value = value * factor.view([-1] + [1] * (value.dim() - dim - 1))
    return value


def _run(path: Path, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What the package computes in a process of its own, which a fault of its code ends alone; bf16 as u16."""
    with tempfile.TemporaryDirectory() as folder:
        arrays = {f"{i}": _numbers(value) for i, value in enumerate(inputs)}
        numpy.savez(Path(folder) / "inputs.npz", **arrays)
        child = subprocess.run(
            [
                sys.executable,
                "-m",
                "mlcc.runtime",
                str(path.resolve()),
                "inputs.npz",
                "outputs.npz",
            ],
            check=False,
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": _python_path()},
        )
        if child.returncode != 0:
            if "PackageError: size" in child.stderr:
                raise _PackageRefusesError(child.stderr.strip().splitlines()[-1])
            words = child.stderr.strip().splitlines()[-1:] or [f"status {child.returncode}"]
            raise Error(f"export: the package does not run: {words[0]}")
        with numpy.load(f"{folder}/outputs.npz") as found:
            return [torch.from_numpy(found[str(i)]) for i in range(len(found))]


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


def _numbers(value: torch.Tensor) -> Any:
    plain = value.detach().contiguous()
    return (plain.view(torch.uint16) if value.dtype == torch.bfloat16 else plain).numpy()


def _error(index: int, found: torch.Tensor, expected: torch.Tensor, least: float) -> float:
    if found.dtype != expected.dtype or found.shape != expected.shape:
        raise Error(
            f"export: result {index} is {found.dtype} {list(found.shape)}, the model's"
            f" {expected.dtype} {list(expected.shape)}"
        )
    tolerance = _TOLERANCE.get(expected.dtype)
    if tolerance is None:
        differing = int((found != expected).sum())
        if differing:
            raise Error(
                f"export: result {index} differs from the model's in {differing} elements\n"
                "  remedy: check=False, where either is right, as the order of equal elements"
            )
        return 0.0
    tolerance = max(tolerance, least)
    a, b = found.double(), expected.double()
    is_alike = torch.isclose(a, b, rtol=0.0, atol=0.0, equal_nan=True)
    largest = b[b.isfinite()].abs().max().item() if bool(b.isfinite().any()) else 0.0
    distance = torch.where(is_alike, 0.0, (a - b).abs()).nan_to_num(nan=torch.inf)
    error = (
        distance.max().item() / max(largest, torch.finfo(expected.dtype).tiny)
        if len(distance.view(-1))
        else 0.0
    )
    if error > tolerance:
        raise Error(
            f"export: result {index} is wrong: its error is {error:.1e} of the largest value, allowed are"
            f" {tolerance:.0e}"
        )
    return error
