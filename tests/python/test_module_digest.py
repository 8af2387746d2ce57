"""What tells modules apart for traces of mlcc.jit that another process takes up."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from mlcc.capture.module_digest import of_module


def net() -> torch.nn.Module:
    """A module with something of each kind."""
    made = torch.nn.Sequential(
        torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)
    )
    made.register_forward_hook(keep, with_kwargs=False)
    made.register_forward_pre_hook(pass_on)
    return made


def keep(module: Any, given: Any, *rest: Any) -> None:
    """Changes nothing."""


def pass_on(module: Any, given: Any, *rest: Any) -> None:
    """Changes nothing."""


def digest(module: torch.nn.Module) -> str:
    """Where the trace's code names what its modules name."""
    return of_module(module, {"p", "eps", "training"})


def test_equal_modules_have_one_digest() -> None:
    assert digest(net()) == digest(net())


CHANGES: dict[str, Callable[[Any], Any]] = {
    "mode": lambda made: made.eval(),
    "mode of a part": lambda made: made[1].eval(),
    "a number": lambda made: setattr(made[2], "p", 0.25),
    "a hook": lambda made: made.register_forward_hook(keep),
    "a hook with keywords": lambda made: made._forward_hooks_with_kwargs.update(
        dict.fromkeys(made._forward_hooks, True)
    ),
    "a hook that is always called": lambda made: made._forward_hooks_always_called.update(
        dict.fromkeys(made._forward_hooks, True)
    ),
    "a hook before with keywords": lambda made: made._forward_pre_hooks_with_kwargs.update(
        dict.fromkeys(made._forward_pre_hooks, True)
    ),
    "what needs a gradient": lambda made: made[0].weight.requires_grad_(False),
    "a part": lambda made: made.append(torch.nn.Identity()),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_changes_the_digest(change: str) -> None:
    made = net()
    before = digest(made)
    CHANGES[change](made)
    assert digest(made) != before
