"""Packages that an earlier version wrote are read by this one."""

from __future__ import annotations

import platform

import numpy
import pytest
import torch

import mlcc.runtime
from tests.python.golden import COLUMNS, FILES, FOLDER, model

_TARGETS = {"x86_64": "x86-64", "aarch64": "neoverse-n1"}


def test_an_earlier_file_runs() -> None:
    package = mlcc.runtime.load(FOLDER / FILES[_TARGETS[platform.machine()]], check_weights=True)
    assert package.manifest["format"] == 1
    assert package.inputs[0].size_texts == ("batch", str(COLUMNS))
    for rows in (1, 5, 64):
        x = torch.arange(float(rows * COLUMNS)).view(rows, COLUMNS) % 7 - 3
        with torch.no_grad():
            expected = model()(x).numpy()
        assert numpy.array_equal(package(x.numpy()), expected)
    package.refit({"0.bias": numpy.full(3, 100, numpy.float32)})
    assert package(numpy.zeros((1, COLUMNS), numpy.float32)).tolist() == [[100.0] * 3]


def test_a_file_for_another_architecture_says_so() -> None:
    (other,) = (name for machine, name in _TARGETS.items() if machine != platform.machine())
    with pytest.raises(mlcc.runtime.PackageError, match="this machine has no"):
        mlcc.runtime.load(FOLDER / FILES[other])
