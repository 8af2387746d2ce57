"""What it costs a call to see that a weight has not changed: identity, fingerprint, reference counts.

Two modules that compute the same from 75 parameters each: one reduces them to kept values, the other reads those
reduced values as parameters. The difference of their calls is the price, with the weights in the caches and after
other data went through them.
"""

import time

import torch

import mlcc

COUNT = 75


class Sums(torch.nn.Module):
    """Adds one number for each weight: what is kept of it, or a parameter."""

    def __init__(self, size: int, keeps: bool) -> None:
        super().__init__()
        sizes = [size if keeps else 1] * COUNT
        self.weights = torch.nn.ParameterList([torch.randn(one) for one in sizes])
        self._keeps = keeps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The sum."""
        for weight in self.weights:
            x = x + (weight.exp().sum(0, keepdim=True) if self._keeps else weight)
        return x


def lower_quartile(call: object, rounds: int, between: torch.Tensor | None = None) -> float:
    """Seconds of a call, with `between` read and written before each."""
    x = torch.randn(1)
    times = []
    for _ in range(rounds):
        if between is not None:
            between.add_(1)
        start = time.perf_counter()
        call(x)  # type: ignore[operator]
        times.append(time.perf_counter() - start)
    return sorted(times)[rounds // 4]


@torch.no_grad()
def main() -> None:
    """Print one line for each size of weights."""
    torch.set_num_threads(1)
    other = torch.zeros(64 << 20)
    for size in (64, 1024, 4096, 768 * 768, 768 * 3072):
        kept, plain = mlcc.jit(Sums(size, True)), mlcc.jit(Sums(size, False))
        for call in (kept, plain):
            call(torch.randn(1))
        warm = lower_quartile(kept, 200) - lower_quartile(plain, 200)
        cold = lower_quartile(kept, 15, other) - lower_quartile(plain, 15, other)
        print(
            f"{size * 4} bytes: {warm / COUNT * 1e9:.0f} ns a weight, {cold / COUNT * 1e9:.0f} out of the caches"
        )


if __name__ == "__main__":
    main()
