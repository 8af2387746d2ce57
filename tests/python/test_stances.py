"""What keeps mlcc.jit from compiling on request: option disable, torch.compiler.set_stance and disable."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch

import mlcc
from mlcc.capture import stances

X = torch.arange(6, dtype=torch.float32).reshape(2, 3)


def _by_assignment() -> Any:
    @contextlib.contextmanager
    def assigned() -> Any:
        mlcc.config.disable = True
        try:
            yield
        finally:
            del mlcc.config.disable

    return assigned()


def _by_environment() -> Any:
    @contextlib.contextmanager
    def set_in() -> Any:
        os.environ["MLCC_DISABLE"] = "1"
        try:
            yield
        finally:
            del os.environ["MLCC_DISABLE"]

    return set_in()


EAGER: dict[str, Callable[[], Any]] = {
    "patch": lambda: mlcc.config.patch(disable=True),
    "assignment": _by_assignment,
    "environment": _by_environment,
    "stance": lambda: torch.compiler.set_stance("force_eager"),
}


def traced_or_not(x: torch.Tensor) -> torch.Tensor:
    """Adds 1 in a trace and 2 in eager."""
    return x + (1 if torch.compiler.is_compiling() else 2)


@pytest.mark.parametrize("way", EAGER)
def test_the_original_runs(way: str) -> None:
    """Before a trace, and where there is one that the core finds."""
    jitted = mlcc.jit(traced_or_not)
    with EAGER[way]():
        assert stances.is_asked() and stances.current() == "force_eager"
        for _ in range(3):
            assert torch.equal(jitted(X), X + 2)
        assert jitted._traces == 0
    assert not stances.is_asked()
    for _ in range(2):
        assert torch.equal(jitted(X), X + 1)
    assert jitted._traces == 1 and jitted._dispatch(X) is not NotImplemented
    with EAGER[way]():
        assert torch.equal(jitted(X), X + 2)
    assert torch.equal(jitted(X), X + 1)


def test_a_false_option_is_none() -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    with mlcc.config.patch(disable=False):
        jitted(X)
    assert jitted._traces == 1


def test_eager_on_recompile() -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(jitted(X), X + 1)
        assert jitted._traces == 0
    jitted(X)
    with torch.compiler.set_stance("eager_on_recompile"):
        assert torch.equal(jitted(X.long()), X.long() + 1)
        assert torch.equal(jitted(X[:, :2].clone()), X[:, :2] + 1)
    assert jitted._traces == 1


def test_fail_on_recompile() -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    with (
        torch.compiler.set_stance("fail_on_recompile"),
        pytest.raises(mlcc.Error, match="nothing is compiled yet"),
    ):
        jitted(X)
    jitted(X)
    with torch.compiler.set_stance("fail_on_recompile"):
        jitted(X[:, :2].clone())
        with pytest.raises(
            mlcc.Error, match=r"test_stances.*x\.dtype was torch\.float32, now torch\.int64"
        ):
            jitted(X.long())
    assert jitted._traces == 1


@pytest.mark.parametrize("stance", ["eager_then_compile", "aot_eager_then_compile"])
def test_stances_that_compile_later_are_the_default(stance: str) -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    with torch.compiler.set_stance(stance):
        assert torch.equal(jitted(X), X + 1)
    assert jitted._traces == 1


def test_disabled_functions(mlcc_log: Any, recwarn: pytest.WarningsRecorder) -> None:
    """Whichever is applied first."""
    disabled = mlcc.jit(torch.compiler.disable(lambda x: x + 1))
    with mlcc_log("fallback") as told:
        for _ in range(2):
            assert torch.equal(disabled(X), X + 1)
    assert disabled._traces == 0
    assert [line.partition("eagerly: ")[2] for line in told] == [
        "torch.compiler.disable was applied to it"
    ]
    jitted = mlcc.jit(lambda x: x + 1)
    assert torch.equal(torch.compiler.disable(jitted)(X), X + 1)
    assert jitted._traces == 0
    assert not [one for one in recwarn if one.category is mlcc.EagerFallbackWarning]


def test_a_module_whose_forward_is_disabled() -> None:
    class Net(torch.nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1

    jitted = mlcc.jit(Net())
    assert torch.equal(jitted(X), X + 1)
    assert jitted._mlcc_jit._traces == 0


def test_calls_inside_of_disabled_functions_are_compiled() -> None:
    """As those of torch.compile are."""
    counts = []

    def backend(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        del inputs
        counts.append(1)
        return graph

    compiled = torch.compile(lambda x: x + 1, backend=backend)
    jitted = mlcc.jit(lambda x: x + 1)
    torch.compiler.disable(lambda x: compiled(x) + jitted(x))(X)
    assert len(counts) == jitted._traces == 1


def test_decorators_find_the_function_of_a_jitted_one() -> None:
    jitted = mlcc.jit(lambda x: x + 1)
    compiled = torch.compile(jitted, backend="eager", fullgraph=True)
    assert torch.equal(compiled(X), X + 1) and jitted._traces == 0
