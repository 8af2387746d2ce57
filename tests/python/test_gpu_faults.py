"""What a GPU does wrong, on the emulated one: code that cannot be loaded, kernels that fault, devices that are lost."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc import LoadError, config
from mlcc._load import load_core
from tests.python import emulator
from tests.python.test_backend import compiled

ROOT = Path(__file__).resolve().parents[2]
LIBRARY = Path(mlcc.__file__).parent / "libmlcc_emulator.so"

pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason="built without the emulator")

OUT_OF_MEMORY, INVALID_IMAGE, NO_BINARY, UNSUPPORTED_PTX = 2, 200, 209, 222


@contextmanager
def failing_loads(status: int) -> Iterator[None]:
    """No code can be loaded."""
    emulator.set_option("fail_with", status)
    emulator.set_option("fail_loads", 1000)
    try:
        yield
    finally:
        emulator.set_option("fail_loads", 0)
        emulator.set_option("fail_with", 0)


def scaled(factor: float) -> Any:
    """A function that nobody compiled before."""
    load_core().clear_cache({"cache_dir": str(ROOT / "build" / "no-such-folder")})
    return lambda x: (x * factor).sigmoid().sum(-1)


# -- code that cannot be loaded


@pytest.mark.parametrize("status", [OUT_OF_MEMORY, INVALID_IMAGE, NO_BINARY, UNSUPPORTED_PTX])
def test_what_cannot_be_loaded_runs_eagerly(status: int) -> None:
    x, function = torch.randn(8, 16), scaled(1.5 + status)
    with config.patch(gpu="emulate", strict=False), failing_loads(status):
        run = compiled(function)
        with pytest.warns(UserWarning, match="graph runs eagerly: loading code .*CUDA_ERROR_"):
            y = run(x)
    assert torch.equal(y, function(x))
    with config.patch(gpu="emulate"), warnings.catch_warnings():
        warnings.simplefilter("error")
        run = compiled(function)
        torch.testing.assert_close(run(x), function(x))


def test_what_cannot_be_loaded_raises_where_that_is_asked_for() -> None:
    with config.patch(gpu="emulate", strict=True), failing_loads(OUT_OF_MEMORY):
        run = compiled(scaled(2.5))
        with pytest.raises(
            RuntimeError, match="CUDA_ERROR_OUT_OF_MEMORY"
        ) as raised:  # Dynamo's own
            run(torch.randn(8, 16))
    assert isinstance(getattr(raised.value, "inner_exception", None), LoadError)


# -- faults: each in a process of its own

PROGRAM = """
import torch
import mlcc
from tests.python import emulator

def add(x):
    return x + 1

def multiply(x):
    return x.exp() * 3

def error_of(call, *args):
    try:
        call(*args)
    except RuntimeError as error:
        error = getattr(error, "inner_exception", error)  # of Dynamo's own
        return f"{type(error).__name__}: {error}"
    return "none"

x = torch.randn(64)
first, second = torch.compile(add, backend="mlcc"), torch.compile(multiply, backend="mlcc")
"""

CPU_IS_WELL = """
torch._dynamo.reset()
with mlcc.config.patch(gpu=""):
    assert torch.equal(torch.compile(add, backend="mlcc")(x), x + 1)
print("well")
"""


def lines_of(program: str, **settings: object) -> list[str]:
    """What a fresh process prints."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MLCC_GPU": "emulate"}
    environment |= {f"MLCC_EMULATOR_{name.upper()}": str(value) for name, value in settings.items()}
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM + program],
        env=environment, capture_output=True, text=True, timeout=300, check=False, cwd=ROOT,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


FAULTS = {
    700: "CUDA_ERROR_ILLEGAL_ADDRESS",
    710: "CUDA_ERROR_ASSERT",
    715: "CUDA_ERROR_ILLEGAL_INSTRUCTION",
    719: "CUDA_ERROR_LAUNCH_FAILED",
}
LOSSES = {46: "CUDA_ERROR_DEVICE_UNAVAILABLE", 214: "CUDA_ERROR_ECC_UNCORRECTABLE"}


@pytest.mark.parametrize("status", FAULTS | LOSSES)
def test_a_fault_names_its_kernel_and_stays(status: int) -> None:
    program = """
first(x), second(x)
emulator.set_option("fail_launches", 1)
for call in (first, second, first):
    print(error_of(call, x))
"""
    now, later, last, well = lines_of(program + CPU_IS_WELL, sticky=1, fail_with=status)
    name = (FAULTS | LOSSES)[status]
    assert now.startswith("Error: kernel k")
    assert f"(add): launching phase 0 on 1 blocks of 128 threads: {name}" in now
    assert ("CUDA_LAUNCH_BLOCKING=1" if status in FAULTS else "the device is lost") in now
    assert "wants to be started again" in now
    assert later.startswith("Error: kernel k")
    assert "mul" in later.split(":")[1]
    for line in (later, last):
        assert f"the GPU failed before, at: {now[7:].partition(';')[0]}" in line
    assert well == "well"


def test_a_fault_that_the_device_tells_late() -> None:
    program = """
first(x), second(x)
emulator.set_option("fail_launches", 1)
print(error_of(first, x))
print(error_of(second, x))
"""
    now, later, well = lines_of(program + CPU_IS_WELL, late=1, fail_with=700)
    assert now == "none"
    assert later.startswith("Error: kernel k")
    assert "CUDA_ERROR_ILLEGAL_ADDRESS" in later
    assert "this one or one before it" in later
    assert well == "well"


def test_a_lost_device_while_compiling_is_no_reason_to_run_eagerly() -> None:
    """Nothing else would run there either."""
    program = """
emulator.set_option("fail_loads", 1000)
print(error_of(first, x))
"""
    told, well = lines_of(program + CPU_IS_WELL, fail_with=214, sticky=1)
    assert told.startswith("Error: loading code for sm_90 of the kernels k_")
    assert "the device is lost" in told
    assert well == "well"


def test_a_driver_older_than_nvrtc() -> None:
    program = """
from mlcc._load import load_core
print(load_core().gpu_info(dict(mlcc.config.resolve()), 0)["reason"])
"""
    told, well = lines_of(program + CPU_IS_WELL, driver_version=12080)
    assert "makes code that a driver of CUDA 12.8 cannot load: update the driver" in told
    assert well == "well"
