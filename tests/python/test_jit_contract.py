"""docs/jit.md is what its programs show."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import mlcc
from tests.python import jit_contract as contract


@pytest.mark.parametrize("sentence", contract.GUARDS)
def test_what_is_guarded(sentence: str, mlcc_log: Any) -> None:
    """A change is noticed, by a trace and not by running the original."""
    with contract.restored(), mlcc_log("fallback") as told:
        function, change, arguments = contract.GUARDS[sentence]()
        compiled = mlcc.jit(function)
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
        assert contract.lookup(compiled)._traces == 1
        change()
        torch.testing.assert_close(compiled(*arguments), function(*arguments))
        assert contract.lookup(compiled)._traces == 2
    assert not [line for line in told if "runs eagerly" in line]


@pytest.mark.parametrize("sentence", contract.ERRORS)
def test_what_is_refused(sentence: str) -> None:
    function, arguments, words = contract.ERRORS[sentence]()
    with pytest.raises(mlcc.Error, match=words):
        mlcc.jit(function)(*arguments)


@pytest.mark.parametrize("sentence", contract.EAGER)
def test_what_runs_the_original(sentence: str, mlcc_log: Any) -> None:
    """Under strict too, and told once."""
    with contract.restored(), mlcc_log("fallback") as told:
        function, arguments, words = contract.EAGER[sentence]()
        compiled = mlcc.jit(function)
        for _ in range(2):
            if words == "a mode of torch":
                found, expected = (torch.func.grad(f)(*arguments) for f in (compiled, function))
                torch.testing.assert_close(found, expected)
            else:
                compiled(*arguments)
    (line,) = (line for line in told if "runs eagerly" in line)
    assert words in line


@pytest.mark.parametrize("sentence", contract.UNSEEN)
def test_what_is_not_seen(sentence: str) -> None:
    """The day that it is, the sentence goes."""
    with contract.restored():
        function, change, arguments = contract.UNSEEN[sentence]()
        compiled = mlcc.jit(function)
        before = compiled(*arguments)
        change()
        assert torch.equal(compiled(*arguments), before)
        assert not torch.equal(function(*arguments), before)


def test_the_document_is_up_to_date() -> None:
    """python -m tests.python.jit_contract writes it."""
    text = contract.DOC.read_text()
    assert contract.BEGIN in text
    assert contract.written(text) == text
