"""EagerFallbackWarning of mlcc.jit: once per reason, with the function, its place, the reason and what to do."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import mlcc
from mlcc.capture import jit_remedies
from tests.python import jit_contract as contract

X = torch.ones(3)


def test_it_names_the_function_its_line_the_reason_and_a_cure() -> None:
    class Settings:
        pass

    def doubled(x: torch.Tensor, note: Any) -> torch.Tensor:
        del note
        return x * 2

    jitted = mlcc.jit(doubled)
    line = doubled.__code__.co_firstlineno
    with pytest.warns(mlcc.EagerFallbackWarning) as caught:
        for _ in range(3):
            jitted(X, Settings())
    (warning,) = caught
    assert warning.filename == __file__
    first, _, last = str(warning.message).split("\n")
    place = f"test_jit_remedies.py:{line}"
    assert first == f"jit of doubled ({place}) runs eagerly: an argument is a Settings"
    assert "register its class with torch.export.register_dataclass" in last


def test_each_function_and_reason_once() -> None:
    def first(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def second(x: torch.Tensor) -> torch.Tensor:
        return x + 2

    jitted = [mlcc.jit(first), mlcc.jit(second)]
    conjugate, noted = torch.ones(2, dtype=torch.complex64).conj(), X.clone()
    noted.note = 1
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            for one in jitted:
                one(conjugate)
                one(noted)
    assert len(caught) == 4 and len({str(one.message) for one in caught}) == 4


def test_what_programs_do_on_purpose_is_no_warning(mlcc_log: Any) -> None:
    jitted = mlcc.jit(lambda x: x.sin().sum())
    with warnings.catch_warnings(), mlcc_log("fallback") as told:
        warnings.simplefilter("error", mlcc.EagerFallbackWarning)
        torch.func.grad(jitted)(X)
        with mlcc.config.patch(disable=True):
            jitted(X)
        with torch.compiler.set_stance("force_eager"):
            jitted(X)
        jitted(X)
    assert len(told) == 1 and "a mode of torch" in told[0]


def test_a_warning_that_is_an_error_leaves_no_trace_behind() -> None:
    """And the next call runs."""
    jitted = mlcc.jit(lambda x: x + 1)
    conjugate = torch.ones(2, dtype=torch.complex64).conj()
    with warnings.catch_warnings():
        warnings.simplefilter("error", mlcc.EagerFallbackWarning)
        with pytest.raises(mlcc.EagerFallbackWarning):
            jitted(conjugate)
        assert torch.equal(jitted(conjugate), conjugate + 1)


@pytest.mark.parametrize("sentence", contract.EAGER)
def test_every_reason_of_the_contract_has_a_cure(sentence: str) -> None:
    with contract.restored(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        function, arguments, words = contract.EAGER[sentence]()
        jitted = mlcc.jit(function)
        if words == "a mode of torch":  # and torch.compiler.disable are asked for
            torch.func.grad(jitted)(*arguments)
        else:
            jitted(*arguments)
    texts = [str(one.message) for one in caught if one.category is mlcc.EagerFallbackWarning]
    assert len(texts) == (words not in ("a mode of torch", "torch.compiler.disable"))
    assert all(words in text and "MLCC_STRICT" not in text for text in texts)


def test_an_unknown_reason_has_a_cure() -> None:
    assert "MLCC_STRICT" in jit_remedies.remedy("its trace failed: KeyError: 1")
    assert (
        jit_remedies.remedy("attribute held is a tensor that changes; register it as a buffer")
        == ""
    )
