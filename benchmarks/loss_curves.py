"""A character model trained by eager and by mlcc: the loss of each step, drawn as docs/loss_curves.svg.

usage: loss_curves.py [--steps N] [--output FILE]

The text is this repository's own documentation. Both runs begin with the same weights and see the same batches.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch.nn import functional

ROOT = Path(__file__).resolve().parents[1]
TEXTS = ("docs/overview.md", "docs/glossary.md", "docs/graph_ir.md", "docs/loop_ir.md")
CONTEXT = 32
BATCH = 16
WIDTH = 48


class CharacterModel(torch.nn.Module):
    """A transformer of two layers over bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = torch.nn.Embedding(128, WIDTH)
        self.places = torch.nn.Embedding(CONTEXT, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.norm = torch.nn.LayerNorm(WIDTH)
        self.head = torch.nn.Linear(WIDTH, 128)

    def forward(self, text: torch.Tensor) -> torch.Tensor:
        """Scores of the next character at each place."""
        x = self.characters(text) + self.places.weight
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Layer(torch.nn.Module):
    """Causal attention and a feed-forward network."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.projection = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.output = torch.nn.Linear(WIDTH, WIDTH)
        self.feed = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.GELU(), torch.nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Residual sums around both."""
        parts = self.projection(self.norms[0](x)).unflatten(2, (3, 4, WIDTH // 4))
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind()
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.output(attended.transpose(1, 2).flatten(2))
        return x + self.feed(self.norms[1](x))


def text() -> torch.Tensor:
    """All characters, as numbers below 128."""
    joined = "".join((ROOT / name).read_text() for name in TEXTS)
    return torch.tensor([min(ord(letter), 127) for letter in joined])


def train(backend: str, steps: int) -> list[float]:
    """The loss of each step. `backend` is one of torch.compile's, or "eager" for no compilation."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    data, model = text(), CharacterModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    run = model if backend == "eager" else torch.compile(model, backend=backend)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(steps):
        starts = torch.randint(0, len(data) - CONTEXT - 1, (BATCH, 1), generator=generator)
        places = starts + torch.arange(CONTEXT + 1)
        rows = data[places]
        optimizer.zero_grad()
        loss = functional.cross_entropy(run(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


# -- drawing

SIZE = (720, 360)
MARGIN = 48
COLORS = {"eager": "#d9822b", "mlcc": "#2b6cb0"}


def drawing(curves: dict[str, list[float]]) -> str:
    """The curves as SVG; the first is drawn wide, so that the second can be seen on top of it."""
    width, height = SIZE
    steps = max(len(values) for values in curves.values())
    top = max(max(values) for values in curves.values())

    def x(step: float) -> float:
        return MARGIN + step / max(1, steps - 1) * (width - 2 * MARGIN)

    def y(loss: float) -> float:
        return height - MARGIN - loss / top * (height - 2 * MARGIN)

    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for loss in range(int(top) + 1):
        lines.append(
            f'<path d="M{x(0):.1f} {y(loss):.1f}H{x(steps - 1):.1f}" stroke="#ddd"/>'
            f'<text x="{MARGIN - 8}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss}</text>'
        )
    for step in range(0, steps, max(1, steps // 5)):
        lines.append(
            f'<text x="{x(step):.1f}" y="{height - MARGIN + 18}" text-anchor="middle">{step}</text>'
        )
    for place, (name, values) in enumerate(curves.items()):
        points = " ".join(f"{x(i):.1f},{y(value):.1f}" for i, value in enumerate(values))
        lines.append(
            f'<polyline points="{points}" fill="none" stroke="{COLORS.get(name, "#555")}" '
            f'stroke-width="{4 - 2.8 * place:.1f}" opacity="0.9"/>'
            f'<text x="{width - MARGIN}" y="{MARGIN + 16 * place}" text-anchor="end" '
            f'fill="{COLORS.get(name, "#555")}">{name}: {values[-1]:.3f} at the end</text>'
        )
    middle = width / 2
    lines.append(f'<text x="{middle}" y="20" text-anchor="middle">Loss of a character model</text>')
    lines.append(f'<text x="{middle}" y="{height - 10}" text-anchor="middle">step</text></svg>')
    return "\n".join(lines) + "\n"


def main() -> None:
    """Train, print the difference and draw."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "loss_curves.svg")
    arguments = parser.parse_args()
    curves = {name: train(name, arguments.steps) for name in ("eager", "mlcc")}
    apart = [abs(a - b) for a, b in zip(*curves.values(), strict=True)]
    print(f"{arguments.steps} steps; losses differ by {sum(apart) / len(apart):.2g} in the mean,")
    print(
        f"{max(apart):.2g} at most; last: "
        + ", ".join(f"{k} {v[-1]:.4f}" for k, v in curves.items())
    )
    arguments.output.write_text(drawing(curves))


if __name__ == "__main__":
    main()
