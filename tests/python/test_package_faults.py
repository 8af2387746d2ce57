"""Packages where memory is watched and where files are not as they should be."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

import mlcc
import mlcc.runtime
from mlcc.runtime import PackageError
from tests.python.test_refit import Recurrent

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = ROOT / "mlcc" / "libmlcc_runtime.so"

pytestmark = pytest.mark.usefixtures("nothing_kept")


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    torch.manual_seed(0)
    images = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.SiLU(),
        nn.Conv2d(16, 16, 3, padding=1, groups=16),
        nn.ConvTranspose2d(16, 4, 2, stride=2),
    )
    return {
        "attention": (
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True),
            torch.randn(2, 9, 32),
        ),
        "images": (images, torch.randn(2, 3, 20, 28)),
        "recurrent": (Recurrent(), torch.randn(2, 6, 12)),
    }


@pytest.mark.skipif(
    shutil.which("valgrind") is None or shutil.which("gcc") is None,
    reason="needs valgrind and gcc",
)
@pytest.mark.parametrize("name", sorted(models()))
def test_valgrind_finds_nothing(name: str, tmp_path: Path) -> None:
    """A C program on two threads: no read of what is not there or not written, and all memory goes back."""
    model, x = models()[name]
    # valgrind knows no AVX-512.
    mlcc.export(model.eval(), (x,), tmp_path / "m.mlcc", target="x86-64-v3", check=False)
    program, source = tmp_path / "run", ROOT / "tests" / "aarch64" / "run_package.c"
    include = ROOT / "csrc" / "package"
    command = ["gcc", "-g", "-std=gnu11", f"-I{include}", source, LIBRARY, "-o", program]
    subprocess.run([str(one) for one in command], check=True)
    (tmp_path / "in").write_bytes(x.numpy().tobytes())
    # What stays reachable is the C++ library's memory for exceptions where there is no other.
    leaks = "--errors-for-leak-kinds=definite,indirect,possible"
    options = ["--error-exitcode=99", "--leak-check=full", leaks, "--quiet"]
    result = subprocess.run(
        ["valgrind", *options, program, tmp_path / "m.mlcc", tmp_path / "in", tmp_path / "out"],
        env={**os.environ, "LD_LIBRARY_PATH": str(LIBRARY.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0 and result.stderr == "", result.stderr
    with torch.no_grad():
        expected = model(x).numpy()
    found = numpy.fromfile(tmp_path / "out", numpy.float32).reshape(expected.shape)
    numpy.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def _exported(folder: Path) -> Path:
    mlcc.export(nn.Linear(4, 3).eval(), (torch.ones(2, 4),), folder / "m.mlcc")
    return folder / "m.mlcc"


@pytest.fixture
def noexec(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "noexec"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "noexec", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("no folder can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_folder_that_is_mounted_noexec(noexec: Path, tmp_path: Path) -> None:
    path = shutil.copy(_exported(tmp_path), noexec)
    with pytest.raises(PackageError, match="is its folder mounted noexec") as error:
        mlcc.load(path)
    assert error.value.status == 2 and str(path) in str(error.value)


def test_a_file_that_shrinks(tmp_path: Path) -> None:
    path = _exported(tmp_path)
    model = mlcc.runtime.load(path)
    x = numpy.ones((2, 4), numpy.float32)
    model(x)
    size = path.stat().st_size
    os.truncate(path, 4096)
    with pytest.raises(PackageError, match=f"found 4096 bytes, expected {size}"):
        model(x)


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    path = _exported(tmp_path)
    model = mlcc.runtime.load(path)
    x = numpy.ones((2, 4), numpy.float32)
    before = model(x)
    other = tmp_path / "other"
    other.write_bytes(b"short")
    other.replace(path)
    assert numpy.array_equal(model(x), before)
