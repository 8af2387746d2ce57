"""A few kernels of each kind in one process, for compute-sanitizer. usage: sample.py"""

from __future__ import annotations

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ["MLCC_STRICT"] = "1"

import torch

from tests.gpu.on_device import DEVICE, failures, on_device, synchronize

FUNCTIONS = {
    "pointwise": lambda x, i: torch.nn.functional.gelu(x) * x + 1,
    "cast": lambda x, i: x.to(torch.bfloat16),
    "transpose": lambda x, i: x.t().contiguous(),
    "softmax": lambda x, i: x.softmax(-1),
    "row sum": lambda x, i: x.sum(1),
    "column sum": lambda x, i: x.sum(0),
    "sum": lambda x, i: x.sum(),
    "layer norm": lambda x, i: torch.nn.functional.layer_norm(x, x.shape[1:]),
    "gather": lambda x, i: x[i],
    "cat": lambda x, i: torch.cat([x, x[:, :3]], 1),
}


def main() -> None:
    """Run them on odd and on even sizes, aligned and not."""
    index = torch.tensor([0, 5, 2, 1, 5], device=DEVICE)
    wrong = []
    for x in (
        on_device(37, 131),
        on_device(64, 1024),
        on_device(65, 257).flatten()[1:16385].view(64, 256),
    ):
        wrong += failures(FUNCTIONS, x, index)
    synchronize()
    for line in wrong:
        print(line)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
