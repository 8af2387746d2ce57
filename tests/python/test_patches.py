"""What mlcc changes in torch for the whole process is still needed: without a patch something else happens."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from mlcc.torch_private import patches


def saved_sizes(function: Callable[..., Any], *inputs: torch.Tensor) -> list[int]:
    """Elements of the tensors that a compiled function saves beside its inputs."""
    from mlcc.capture.backend import compile as backend

    torch._dynamo.reset()
    options = {"torch_caches": False}  # whose keys know no patches
    result = torch.compile(function, backend=backend, options=options)(*inputs)
    memory = {one.untyped_storage().data_ptr() for one in inputs}
    saved = result.grad_fn.saved_tensors
    return [one.numel() for one in saved if one.untyped_storage().data_ptr() not in memory]


def test_more_ops_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rolled copy is not saved beside the tensor that it is made of."""

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x.roll(1, 0) * w).sin()

    inputs = [torch.randn(32, 8, requires_grad=True) for _ in range(2)]
    assert saved_sizes(function, *inputs) == []
    monkeypatch.setattr(patches, "recomputing", lambda *_: contextlib.nullcontext())
    assert saved_sizes(function, *inputs) != []


RECURRENT = """
import sys, torch
from mlcc.torch_private import patches
if sys.argv[1] == "without":
    patches.install_recurrent = lambda *args, **kwargs: None
from mlcc.capture.backend import compile as backend
module = torch.nn.LSTM(4, 4).eval()
with torch.no_grad():
    print(torch.compile(module, backend=backend, fullgraph=True)(torch.ones(2, 1, 4))[0].shape)
"""

STOLEN = """
import sys, torch
from mlcc.torch_private import patches
if sys.argv[1] == "without":
    patches.guard_is_shared = lambda is_stolen: None
from mlcc.capture.backend import compile as backend
layer = torch.nn.Linear(512, 512).eval()
compiled = torch.compile(layer, backend=backend, options={"weights": "steal"})
with torch.no_grad():
    compiled(torch.ones(16, 512))
    compiled(torch.ones(16, 512))
print(layer.weight.untyped_storage().is_shared())
"""


@pytest.mark.parametrize(
    ("program", "answer"),
    [(RECURRENT, "torch.Size([2, 1, 4])"), (STOLEN, "False")],
    ids=["Dynamo looks into recurrent layers", "stolen storages are not shared"],
)
def test_of_a_process(program: str, answer: str) -> None:
    """Without the first patch Dynamo breaks the graph, without the second torch ends the process."""
    runs = {
        how: subprocess.run(
            [sys.executable, "-c", program, how], capture_output=True, text=True, check=False
        )
        for how in ("with", "without")
    }
    assert runs["with"].stdout.strip() == answer, runs["with"].stderr
    assert runs["without"].returncode != 0
