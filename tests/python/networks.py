"""Small networks of many kinds, written out, each with inputs: what users compile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv(inner: int, outer: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Convolution, batch norm and SiLU."""
    return nn.Sequential(
        nn.Conv2d(inner, outer, size, stride, size // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outer),
        nn.SiLU(),
    )


class ResNet(nn.Module):
    """Basic blocks with a shortcut by projection."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.pool = nn.MaxPool2d(3, 2, 1)
        self.first = nn.Sequential(nn.Conv2d(8, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16))
        self.second = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16))
        self.shortcut = nn.Conv2d(8, 16, 1, 2)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        x = (self.second(self.first(x).relu()) + self.shortcut(x)).relu()
        return self.head(x.mean((2, 3)))


class MobileNet(nn.Module):
    """Inverted residuals: expand, depthwise, project."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(
            conv(4, 12, 1), conv(12, 12, groups=12), nn.Conv2d(12, 4, 1), nn.BatchNorm2d(4)
        )
        self.last = nn.Sequential(nn.Conv2d(4, 8, 1), nn.Hardswish())

    def forward(self, x: Tensor) -> Tensor:
        return F.adaptive_avg_pool2d(self.last(x + self.block(x)), 1).flatten(1)


class EfficientNet(nn.Module):
    """A depthwise block with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.expand, self.depthwise = conv(4, 16, 1), conv(16, 16, 5, 2, 16)
        self.squeeze, self.excite = nn.Conv2d(16, 2, 1), nn.Conv2d(2, 16, 1)
        self.project = nn.Conv2d(16, 6, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.depthwise(self.expand(x))
        gate = self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True)))).sigmoid()
        return self.project(x * gate)


class UNet(nn.Module):
    """Down, up, and a bridge between."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.middle = conv(1, 4), conv(4, 8)
        self.up = nn.ConvTranspose2d(8, 4, 2, 2)
        self.out = nn.Conv2d(8, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        kept = self.down(x)
        deep = self.middle(F.max_pool2d(kept, 2))
        return self.out(torch.cat([self.up(deep), kept], 1)).log_softmax(1)


class Generator(nn.Module):
    """Noise to images."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.ConvTranspose2d(6, 8, 4, 1, 0, bias=False),
            nn.BatchNorm2d(8),
            nn.LeakyReLU(0.2),
            nn.ConvTranspose2d(8, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z[:, :, None, None])


class Recurrent(nn.Module):
    """Cells written out over time: LSTM, GRU, or a plain one."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        cells: dict[str, Any] = {"lstm": nn.LSTMCell, "gru": nn.GRUCell, "rnn": nn.RNNCell}
        self.kind, self.cell, self.head = kind, cells[kind](4, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = x.new_zeros(x.shape[1], 6)
        c = torch.zeros_like(h)
        outputs = []
        for step in x.unbind():
            if self.kind == "lstm":
                h, c = self.cell(step, (h, c))
            else:
                h = self.cell(step, h)
            outputs.append(h)
        return self.head(torch.stack(outputs))


class GraphNetwork(nn.Module):
    """Messages along edges, averaged at their targets."""

    def __init__(self) -> None:
        super().__init__()
        self.message, self.update = nn.Linear(8, 6), nn.Linear(10, 4)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        source, target = edges
        messages = self.message(torch.cat([x[source], x[target]], 1)).relu()
        index = target[:, None].expand_as(messages)
        total = x.new_zeros(x.shape[0], 6).scatter_add(0, index, messages)
        count = x.new_zeros(x.shape[0]).index_add(0, target, torch.ones_like(target, dtype=x.dtype))
        return self.update(torch.cat([x, total / count.clamp(min=1)[:, None]], 1))


class Recommender(nn.Module):
    """Embedding bags and pairwise products of features."""

    def __init__(self) -> None:
        super().__init__()
        self.bags = nn.ModuleList(nn.EmbeddingBag(20, 4, mode="sum") for _ in range(2))
        self.dense, self.top = nn.Linear(5, 4), nn.Linear(7, 1)

    def forward(self, dense: Tensor, first: Tensor, second: Tensor) -> Tensor:
        x = self.dense(dense).relu()
        parts = torch.stack([x, self.bags[0](first), self.bags[1](second)], 1)
        products = parts @ parts.transpose(1, 2)
        rows, columns = torch.tril_indices(3, 3, offset=-1)
        pairs = products[:, rows, columns]
        return self.top(torch.cat([x, pairs], 1)).sigmoid()


class Denoiser(nn.Module):
    """A step of diffusion: a U-Net's middle with attention and an embedding of time."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, 2, 3, padding=1)
        self.norm, self.time = nn.GroupNorm(2, 8), nn.Linear(8, 16)
        self.qkv, self.merge = nn.Conv2d(8, 24, 1), nn.Conv2d(8, 8, 1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        frequencies = torch.exp(torch.arange(4, device=x.device) * -0.5)
        angles = t[:, None] * frequencies
        scale, shift = self.time(torch.cat([angles.sin(), angles.cos()], 1)).chunk(2, 1)
        h = self.norm(self.inner(x)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        h = F.silu(h)
        q, k, v = self.qkv(h).flatten(2).unflatten(1, (3, 2, 4)).unbind(1)
        a = F.scaled_dot_product_attention(*(p.transpose(2, 3) for p in (q, k, v)))
        h = h + self.merge(a.transpose(2, 3).flatten(1, 2).view_as(h))
        return self.outer(h)


class Radiance(nn.Module):
    """Positions to colors along rays, composited by density."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(15, 16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, origins: Tensor, directions: Tensor) -> Tensor:
        depths = torch.linspace(0.5, 2.0, 6, device=origins.device)
        points = origins[:, None] + directions[:, None] * depths[:, None]
        waves = [f(points * 2**k) for k in range(2) for f in (torch.sin, torch.cos)]
        out = self.layers(torch.cat([points, *waves], -1))
        density, color = F.softplus(out[..., 0]), out[..., 1:].sigmoid()
        alpha = 1 - torch.exp(-density * 0.3)
        clear = torch.cumprod(1 - alpha + 1e-10, 1)
        weights = alpha * torch.cat([torch.ones_like(clear[:, :1]), clear[:, :-1]], 1)
        return (weights[..., None] * color).sum(1)


class Autoencoder(nn.Module):
    """A variational one; the noise comes from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(10, 8), nn.Linear(4, 10)

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + noise * (0.5 * log_variance).exp()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
        wrong = F.binary_cross_entropy_with_logits(self.decoder(z), x.sigmoid(), reduction="none")
        return wrong.sum(1) + divergence


class Policy(nn.Module):
    """The clipped loss of a policy with a value, over advantages of a rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.actor, self.critic = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 1)

    def forward(self, states: Tensor, actions: Tensor, old: Tensor, rewards: Tensor) -> Tensor:
        h = self.body(states).tanh()
        log_p = self.actor(h).log_softmax(-1)
        values = self.critic(h).squeeze(-1)
        advantages = (rewards.flip(0).cumsum(0).flip(0) - values).detach()
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (log_p.gather(1, actions[:, None]).squeeze(1) - old).exp()
        clipped = ratio.clamp(0.8, 1.2)
        loss = -torch.minimum(ratio * advantages, clipped * advantages)
        entropy = -(log_p.exp() * log_p).sum(-1)
        return loss + 0.5 * (values - rewards) ** 2 - 0.01 * entropy


class Heat(nn.Module):
    """Steps of a diffusing field with a learned speed, and of bodies that attract each other."""

    def __init__(self) -> None:
        super().__init__()
        self.speed = nn.Parameter(torch.tensor(0.1))

    def forward(self, field: Tensor, bodies: Tensor, velocity: Tensor) -> Tensor:
        for _ in range(3):
            around = sum(field.roll(s, d) for s in (-1, 1) for d in (0, 1)) - 4 * field
            field = field + self.speed * around
            apart = bodies[None] - bodies[:, None]
            distance = (apart**2).sum(-1, keepdim=True) + 0.1
            velocity = velocity + self.speed * (apart / distance**1.5).sum(1)
            bodies = bodies + 0.1 * velocity
        return torch.cat([field.flatten(), bodies.flatten(), velocity.flatten()])


def images(channels: int) -> Callable[[], list[Tensor]]:
    return lambda: [torch.randn(2, channels, 8, 8)]


EDGES = torch.tensor([[0, 1, 2, 3, 3, 1], [1, 2, 0, 1, 1, 4]])
BAGS = torch.tensor([[1, 5, 5], [0, 19, 2], [7, 7, 7]])

# Name -> (module, inputs)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], list[Tensor]]]] = {
    "ResNet": (ResNet, images(3)),
    "MobileNet": (MobileNet, images(4)),
    "EfficientNet": (EfficientNet, images(4)),
    "U-Net": (UNet, images(1)),
    "generator": (Generator, lambda: [torch.randn(3, 6)]),
    "LSTM": (lambda: Recurrent("lstm"), lambda: [torch.randn(5, 2, 4)]),
    "GRU": (lambda: Recurrent("gru"), lambda: [torch.randn(5, 2, 4)]),
    "RNN": (lambda: Recurrent("rnn"), lambda: [torch.randn(5, 2, 4)]),
    "graph network": (GraphNetwork, lambda: [torch.randn(5, 4), EDGES]),
    "recommender": (Recommender, lambda: [torch.randn(3, 5), BAGS, BAGS.flip(0)]),
    "denoiser": (Denoiser, lambda: [torch.randn(2, 2, 4, 4), torch.tensor([0.3, 5.0])]),
    "radiance field": (Radiance, lambda: [torch.randn(4, 3), torch.randn(4, 3)]),
    "autoencoder": (Autoencoder, lambda: [torch.randn(3, 10), torch.randn(3, 4)]),
    "policy": (
        Policy,
        lambda: [torch.randn(6, 4), torch.randint(0, 3, (6,)), -torch.rand(6), torch.randn(6)],
    ),
    "physics": (Heat, lambda: [torch.randn(6, 6), torch.randn(4, 2), torch.randn(4, 2)]),
}
