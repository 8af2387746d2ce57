"""A small classifier trained by eager and by mlcc from the same weights. usage: training.py [steps]"""

from __future__ import annotations

import copy
import sys

import torch
from torch import nn


def make_data(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in a plane, and whether they lie in a ring: [count, 2] and [count]."""
    points = torch.randn(count, 2)
    radius = points.norm(dim=-1)
    return points, ((radius > 0.7) & (radius < 1.5)).long()


def train(model: nn.Module, steps: int, *, is_compiled: bool) -> list[float]:
    """The loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    points, labels = make_data(512)

    def loss_of(points: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(model(points), labels)

    step_loss = torch.compile(loss_of, backend="mlcc") if is_compiled else loss_of
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = step_loss(points, labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def main(steps: int) -> None:
    """Train both and compare."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(2, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 2))
    twin = copy.deepcopy(model)
    torch.manual_seed(1)
    eager = train(model, steps, is_compiled=False)
    torch.manual_seed(1)
    ours = train(twin, steps, is_compiled=True)
    print(f"eager: {eager[0]:.4f} to {eager[-1]:.4f}; mlcc: {ours[0]:.4f} to {ours[-1]:.4f}")
    torch.testing.assert_close(torch.tensor(ours), torch.tensor(eager), rtol=1e-2, atol=1e-3)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 40)
