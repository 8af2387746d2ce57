"""DTensors of two processes, and caches that a first pair of processes fills for a second one."""

from __future__ import annotations

import pytest

from tests.distributed.marks import cases
from tests.distributed.processes import Processes

CASES = [
    ("product", "rows", "whole"),
    ("product", "columns", "rows"),
    ("product", "whole", "columns"),
    ("softmax", "rows", "rows"),
    ("softmax", "columns", "whole"),
    ("mean", "rows", "rows"),
    ("mean", "columns", "rows"),
    ("moved", "rows", "whole"),
    ("moved", "columns", "rows"),
    ("local", "rows", "rows"),
]


@pytest.mark.parametrize("name, left, right", cases(CASES, CASES[:1] + CASES[7:8]))
def test_values_and_gradients(pair: Processes, name: str, left: str, right: str) -> None:
    pair.run("parts.check", name, left, right)


@pytest.mark.slow
def test_sizes_that_change(pair: Processes) -> None:
    pair.run("parts.check", "product", "rows", "whole", True)


@pytest.mark.slow
def test_other_processes_on_the_same_caches(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("caches")
    environment = {
        "MLCC_CACHE_DIR": str(folder / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
    }
    hits = []
    for _ in range(2):
        processes = Processes(2, environment)
        try:
            hits.append(processes.run("parts.warm"))
        finally:
            processes.stop()
    for cold, warm in zip(*hits, strict=True):
        assert cold["plain"] == 0
        assert warm["plain"] == 5
