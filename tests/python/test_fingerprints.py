"""Digests of values: the same in each process, others for what differs, none for what only identity tells."""

import enum
import functools
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import CodeType
from typing import Any

import pytest
import torch

from mlcc.torch_private import fingerprints

ROOT = Path(__file__).parents[2]


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclass
class Point:
    x: float
    names: frozenset[str]


def code(text: str) -> CodeType:
    """The code of a function `f` in a text."""
    names: dict[str, Any] = {}
    exec(text, names)
    found: CodeType = names["f"].__code__
    return found


VALUES = [
    *(None, True, 1, 1.0, -0.0, 0.0, math.inf, 1j, "1", b"1", (), [], (1,), [1], {1}, {1, 2}),
    *({"a": 1, "b": 2}, {"b": 2, "a": 1}, frozenset({1}), slice(1, 2), range(3), Ellipsis),
    *(torch.float32, torch.device("cpu"), torch.Size([1]), torch.strided, Color.RED, Color.BLUE),
    *(Point(1.0, frozenset({"a", "b"})), Point(1.0, frozenset({"a"})), Point, Color, math, len),
    *(
        math.sin,
        torch.sin,
        torch.nn.functional.relu,
        torch.ops.aten.sin,
        torch.ops.aten.sin.default,
    ),
    *(code("def f(a):\n    return a\n"), code("def f(a):\n    return a + 1\n"), dict.fromkeys),
    *(functools.partial(math.pow, 2.0), functools.partial(math.pow, 3.0), str.join, 1 << 80),
]


def test_what_differs_has_another_digest() -> None:
    digests = [fingerprints.of_value(value) for value in VALUES]
    assert len(set(digests)) == len(VALUES)
    assert digests == [fingerprints.of_value(value) for value in VALUES]


def test_another_process_has_the_same() -> None:
    script = (
        "from tests.python import test_fingerprints as test\n"
        "print(*map(test.fingerprints.of_value, test.VALUES), sep='\\n')"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", script],
            env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outputs == {"\n".join(map(fingerprints.of_value, VALUES)) + "\n"}


def test_code_is_the_same_elsewhere_in_a_file() -> None:
    text = "def f(a):\n    return (lambda b: b * 2)(a) in {1, 2, 3}\n"
    assert fingerprints.of_code(code(text)) == fingerprints.of_code(code(f"\n\n# moved\n{text}"))
    assert fingerprints.of_code(code(text)) != fingerprints.of_code(code(text.replace("2)", "3)")))


def test_what_only_identity_tells_has_none() -> None:
    ring: list[Any] = []
    ring.append(ring)
    for value in (
        torch.ones(1),
        torch.nn.Linear(1, 1),
        [torch.ones(1)],
        ring,
        Point(1, frozenset()).__eq__,
    ):
        with pytest.raises(fingerprints.NoFingerprintError):
            fingerprints.of_value(value)
    for value in (object(), [1], 1.5, "text"):
        with pytest.raises(fingerprints.NoFingerprintError):
            fingerprints.of_identity(value)
