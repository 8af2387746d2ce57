"""Writes a small classifier as a package, and an image for it, which examples/packages/classify.c runs.

usage: python examples/packages/classifier.py [FOLDER]
"""

import sys
from pathlib import Path

import torch

import mlcc


def main(folder: Path) -> None:
    """Export, and say what eager finds."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, stride=2, padding=1),
        torch.nn.BatchNorm2d(16),
        torch.nn.ReLU(),
        torch.nn.Conv2d(16, 32, 3, stride=2, padding=1),
        torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1),
        torch.nn.Flatten(),
        torch.nn.Linear(32, 10),
    ).eval()
    image = torch.rand(1, 3, 32, 32)
    print(mlcc.export(model, (image,), folder / "classifier.mlcc"))
    (folder / "image.f32").write_bytes(image.numpy().tobytes())
    with torch.no_grad():
        scores = model(image)
    best = int(scores.argmax())
    print(f"class {best}, score {scores[0, best]:.4f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path())
