"""Python floats that Dynamo makes symbols of: traces that begin again do so before AOTAutograd's work."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

pytestmark = pytest.mark.usefixtures("nothing_kept")


class Model(nn.Module):
    """Its embedding has a float that nothing reads, its attention one that can only be a number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.scale, self.factor = 0.25, 1.5

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """[batch, length] of i64 -> [batch, 1, length, 8]."""
        x = self.embedding(ids).unsqueeze(1)
        attended = nn.functional.scaled_dot_product_attention(x, x, x, scale=self.scale)
        return attended * self.factor


def test_a_float_that_others_read_stays_one() -> None:
    torch._dynamo.reset()
    model = Model().requires_grad_(False)

    def scaled(ids: torch.Tensor) -> torch.Tensor:
        weight, factor = model.embedding.weight, model.factor
        return nn.functional.embedding(ids, weight, norm_type=factor) * factor

    compiled = torch.compile(scaled, backend="mlcc", dynamic=True)
    counters.clear()
    for model.factor in (1.5, 2.5, 3.5):
        ids = torch.randint(0, 16, (2, 5))
        torch.testing.assert_close(compiled(ids), scaled(ids))
    assert counters["stats"]["unique_graphs"] == 1


def test_one_trace_of_aot_for_each_of_dynamo() -> None:
    torch._dynamo.reset()
    model = Model().requires_grad_(False)
    compiled = torch.compile(model, backend="mlcc", dynamic=True)
    for turn, (scale, factor) in enumerate([(0.25, 1.5), (0.25, 2.5), (0.5, 2.5)]):
        model.scale, model.factor = scale, factor
        ids = torch.randint(0, 16, (2, 5 + turn))
        before = counters["aot_autograd"]["total"]
        torch.testing.assert_close(compiled(ids), model(ids))
        # A factor is an input; a scale is a number, and another one is compiled again.
        assert counters["aot_autograd"]["total"] - before == (turn != 1)
