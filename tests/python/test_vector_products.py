"""Products with vectors in packages, from arguments and from weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import mlcc
from tests.python.accuracy import check_all, to_double

pytestmark = pytest.mark.usefixtures("nothing_kept")

CASES: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mv": lambda x, w, v: torch.mv(x, x[0]) + w @ v,
    "matmul": lambda x, w, v: torch.stack([x, x + 1]) @ v,
    "dot": lambda x, w, v: x[0] @ x[1] + torch.vdot(v, v),
    "addmv": lambda x, w, v: torch.addmv(x[0], x, v, beta=0.5, alpha=2) + torch.addmv(v, w, v),
}


class Products(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        self.matrix, self.vector = nn.Parameter(torch.randn(6, 6)), nn.Parameter(torch.randn(6))

    def forward(self, x: Tensor) -> Tensor:
        return CASES[self.name](x, self.matrix, self.vector)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_products(name: str, dtype: torch.dtype, tmp_path: Path) -> None:
    first, second = (Products(name).eval().to(dtype) for _ in range(2))
    args = (torch.randn(6, 6, dtype=dtype),)
    mlcc.export(first, args, tmp_path / "m.mlcc", refit=True)
    package = mlcc.load(tmp_path / "m.mlcc")
    for model in (first, second):
        package.refit(model.state_dict())
        with torch.no_grad():
            found, expected = package(*args), model(*args)
            check_all(found, expected, model.double()(*to_double(args)))


def test_nothing_is_added_where_it_counts_nothing(tmp_path: Path) -> None:
    class Added(nn.Module):
        def forward(self, added: Tensor, x: Tensor) -> Tensor:
            return torch.addmv(added, x, x[0], beta=0)

    args = (torch.full((4,), torch.nan), torch.randn(4, 4))
    mlcc.export(Added().eval(), args, tmp_path / "m.mlcc")
    found = mlcc.load(tmp_path / "m.mlcc")(*args)
    assert torch.allclose(found, args[1] @ args[1][0], rtol=1e-5, atol=1e-5)
