"""Writes tests/python/golden/: packages as this version writes them, which later versions of the format 1 must read.

usage: python tests/python/golden.py. Only where the format changes before its first release.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torch.export import Dim

import mlcc

FOLDER = Path(__file__).resolve().parent / "golden"
FILES = {"x86-64": "linear_x86_64.mlcc", "neoverse-n1": "linear_aarch64.mlcc"}
ROWS, COLUMNS = 3, 4


def model() -> nn.Module:
    """A linear layer and a ReLU, whose weights are small whole numbers."""
    linear = nn.Linear(COLUMNS, ROWS)
    with torch.no_grad():
        linear.weight.copy_(torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS) % 5 - 2)
        linear.bias.copy_(torch.arange(ROWS) - 1)
    return nn.Sequential(linear, nn.ReLU()).eval()


def main() -> None:
    """One file for each architecture; its size varies, and its weights can be exchanged."""
    FOLDER.mkdir(exist_ok=True)
    for target, name in FILES.items():
        mlcc.export(
            model(),
            (torch.zeros(2, COLUMNS),),
            FOLDER / name,
            dynamic_shapes=({0: Dim("batch", min=1, max=64)},),
            target=target,
            refit=True,
            check=False,
        )


if __name__ == "__main__":
    main()
