"""Warm up once, then serve requests of any length without a compilation. usage: serving.py"""

from __future__ import annotations

import torch
from torch import nn

import mlcc


def main() -> None:
    """Warm up with two lengths, then answer others."""
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).eval()
    serve = torch.compile(layer, backend="mlcc", dynamic=True)
    with torch.no_grad():
        for length in (16, 24):
            serve(torch.randn(1, length, 64))
        compiled = mlcc.cache_info()["entries"]
        for length in (7, 33, 100):
            x = torch.randn(1, length, 64)
            torch.testing.assert_close(serve(x), layer(x), rtol=1e-4, atol=1e-4)
    print(f"{compiled} kernels after warming up, {mlcc.cache_info()['entries']} after the requests")


if __name__ == "__main__":
    main()
