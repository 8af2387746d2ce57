"""A small GPT in plain torch, its data, and training of it in one process."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

WORDS, WIDTH, HEADS, LENGTH, LAYERS = 96, 64, 4, 16, 2
BATCH, STEPS = 8, 20


class Attention(nn.Module):
    """Causal attention. How many heads it has follows from the width of its projections, which may be parts."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH)
        self.key = nn.Linear(WIDTH, WIDTH)
        self.value = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            one(x).view(batch, length, -1, WIDTH // HEADS).transpose(1, 2)
            for one in (self.query, self.key, self.value)
        )
        scores = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        result: torch.Tensor = self.out(scores.transpose(1, 2).reshape(batch, length, -1))
        return result


class Block(nn.Module):
    """A layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(WIDTH)
        self.attention = Attention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm1(x))
        result: torch.Tensor = x + self.down(nn.functional.gelu(self.up(self.norm2(x))))
        return result


class Gpt(nn.Module):
    """Logits of the next words."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1], device=words.device))
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.head(self.norm(x))
        return result


def model(dtype: torch.dtype) -> Gpt:
    """The same one at each call."""
    torch.manual_seed(0)
    return Gpt().to(dtype)


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Words and those that follow them: a rule with some noise."""
    generator = torch.Generator().manual_seed(step)
    start = torch.randint(0, WORDS, (BATCH, 1), generator=generator)
    words = (start + 7 * torch.arange(LENGTH + 1)) % WORDS
    noise = torch.rand(words.shape, generator=generator) < 0.1
    words = torch.where(noise, torch.randint(0, WORDS, words.shape, generator=generator), words)
    return words[:, :-1], words[:, 1:]


def optimizer(parameters: object, dtype: torch.dtype) -> torch.optim.Optimizer:
    """Adam divides by what may be near zero, so that rounding shows in f32: there it is momentum."""
    if dtype == torch.float64:
        return torch.optim.AdamW(parameters, lr=1e-3)
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def loss_of(network: Callable[..., torch.Tensor], part: slice, step: int) -> torch.Tensor:
    """The mean over a part of the batch."""
    words, following = batch(step)
    logits = network(words[part])
    return nn.functional.cross_entropy(logits.flatten(0, 1), following[part].flatten())


def trained_alone(dtype: torch.dtype) -> tuple[list[float], dict[str, torch.Tensor]]:
    """The losses and the parameters after training by one process in eager."""
    network = model(dtype)
    stepper = optimizer(network.parameters(), dtype)
    losses = []
    for step in range(STEPS):
        loss = loss_of(network, slice(None), step)
        loss.backward()
        stepper.step()
        stepper.zero_grad()
        losses.append(loss.item())
    return losses, {name: one.detach() for name, one in network.named_parameters()}
