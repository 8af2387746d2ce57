"""Packages for AArch64, made here and run under qemu."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import torch

import mlcc
import mlcc.runtime
from tests.python.accuracy import check_all, leaves
from tests.python.test_export import _models, in_double

PROGRAM = Path(mlcc.__file__).resolve().parent.parent / "build/release/bin/aarch64_run_package"

pytestmark = [
    pytest.mark.usefixtures("nothing_kept"),
    pytest.mark.skipif(
        not PROGRAM.exists() or shutil.which("qemu-aarch64") is None,
        reason="there is nothing that runs code for AArch64",
    ),
]


def _bytes(value: torch.Tensor) -> bytes:
    bits = value.view(torch.uint16) if value.dtype == torch.bfloat16 else value
    return bits.contiguous().numpy().tobytes()


@pytest.mark.parametrize("name", sorted(_models()))
def test_package_for_another_machine(name: str, tmp_path: Path) -> None:
    model, args, kwargs = _models()[name]
    path = tmp_path / "m.mlcc"
    mlcc.export(model.eval(), args, path, kwargs=kwargs, target="neoverse-n1", check=False)
    with pytest.raises(mlcc.runtime.PackageError, match="this machine has no aarch64"):
        mlcc.load(path)
    given = [value for value in leaves((args, kwargs)) if isinstance(value, torch.Tensor)]
    (tmp_path / "in").write_bytes(b"".join(map(_bytes, given)))
    subprocess.run(
        ["qemu-aarch64", PROGRAM, path, tmp_path / "in", tmp_path / "out"], check=True, timeout=300
    )
    with torch.no_grad():
        expected = [v for v in leaves(model(*args, **kwargs)) if isinstance(v, torch.Tensor)]
        exact = [
            v for v in leaves(in_double(model, *args, **kwargs)) if isinstance(v, torch.Tensor)
        ]
    contents = (tmp_path / "out").read_bytes()
    place = 0
    done: list[int] = []  # results that are the same tensor are one output
    for value, reference in zip(expected, exact, strict=True):
        if id(value) in done:
            continue
        done.append(id(value))
        size = value.numel() * value.element_size()
        data = bytearray(contents[place : place + size])
        place += size
        found = (
            torch.frombuffer(data, dtype=value.dtype) if size else torch.empty(0, dtype=value.dtype)
        )
        check_all(found.view(value.shape), value.contiguous(), reference)
    assert place == len(contents)


def test_a_target_that_does_not_run_here_is_not_checked(tmp_path: Path) -> None:
    with pytest.raises(mlcc.Error, match=r"does not run code for neoverse-n1.*\n.*check=False"):
        mlcc.export(
            torch.nn.ReLU().eval(), (torch.ones(3),), tmp_path / "m.mlcc", target="neoverse-n1"
        )
    assert not list(tmp_path.iterdir())
