"""Runs a package on arrays of a file: python -m mlcc.runtime PACKAGE INPUTS.npz OUTPUTS.npz

Arrays are named by their numbers, from 0.
"""

from __future__ import annotations

import sys

import numpy

from .model import load


def main() -> None:
    """Read, run, write."""
    if len(sys.argv) != 4:
        raise SystemExit("usage: python -m mlcc.runtime PACKAGE INPUTS.npz OUTPUTS.npz")
    path, inputs, outputs = sys.argv[1:]
    model = load(path, check_weights=True)
    with numpy.load(inputs) as arrays:
        results = model.run([arrays[str(i)] for i in range(len(arrays))])
    numpy.savez(outputs, **{str(i): value for i, value in enumerate(results)})


if __name__ == "__main__":
    main()
