"""The same again on warm caches: a seeded sample of the long runs' --warm, and what was wrong there."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from tests.conformance import run as conformance
from tests.fuzz import run as fuzz
from tests.fuzz.modes import DRAWS
from tests.models import run as models
from tests.pool import Pool
from tests.warm import Warmth, difference, digests, twice

SECONDS_OF_A_TASK = 240.0  # a busy machine takes more than a minute to import torch
PROGRAMS = 12  # of each mode
EVERY_OP = 60
MODELS = {"gpt2": "training float32", "resnet": "inference float32"}


def test_digests_are_of_form_and_bits() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    (digest,) = digests([x])
    assert digests([x.clone(), x[:, :].detach()]) == [digest, digest]
    others = [x.t(), x.double(), x.reshape(6), x.t().contiguous().t(), x + 1, -x, x[:1]]
    assert digest not in digests(others)
    zero = torch.zeros(1)
    assert digests([zero]) != digests([-zero])
    assert len(set(digests([x.bfloat16(), x > 1, torch.zeros(0), x[:1, :1]]))) == 4


def test_differences_are_told() -> None:
    cold = Warmth(["a", "b"], stored=1)
    assert Warmth(["a", "b"], loaded=1).difference(cold) == ""
    assert "tensor 1" in Warmth(["a", "c"], loaded=1).difference(cold)
    assert "1 tensors" in Warmth(["a"], loaded=1).difference(cold)
    assert "were not found" in Warmth(["a", "b"], loaded=0).difference(cold)
    assert "were not found" in Warmth(["a", "b"], stored=1, loaded=1).difference(cold)


def test_what_the_cache_does_is_measured(fresh_cache: Path) -> None:
    """Else all comparisons would pass without a cache."""
    runs = []
    for _ in range(2):
        torch._dynamo.reset()
        warmth = Warmth()
        with warmth.measured():
            torch.compile(lambda x: x.sin() + 1, backend="mlcc")(torch.ones(3))
        runs.append((warmth.stored, warmth.loaded))
    assert runs == [(1, 0), (0, 1)]


WORKER = """
import json, os, sys
for line in sys.stdin:
    task = json.loads(line)
    seed, warm = task["seed"], task["warm"]
    if warm and seed == 3:
        os._exit(7)
    warmth = {"digests": ["b" if warm and seed == 1 else "a"], "stored": not warm, "loaded": warm and seed != 2}
    error = {"error": "Error: executable"} if warm and seed == 4 else {}
    print(json.dumps({"outcome": {"kind": "", "warmth": warmth, **error}}), flush=True)
"""


def test_a_difference_fails_its_task() -> None:
    pool: Pool[fuzz.Task] = Pool(["-c", WORKER], 1, SECONDS_OF_A_TASK, dict(os.environ))
    tasks = [fuzz.Task(seed) for seed in range(5)]
    answers = list(twice(pool, tasks, lambda task: task._replace(warm=True), batch=2))
    reasons = {task.seed: difference(cold, warm) for task, cold, warm in answers}
    assert list(reasons) == list(range(5))
    assert reasons[0] == ""
    assert "tensor 0" in reasons[1]
    assert "were not found in the cache" in reasons[2]
    assert "crash" in reasons[3]
    assert reasons[4] == "Error: executable"
    kinds = [record["kind"] for _, record in fuzz.outcomes(pool, tasks[:2], warm=True)]
    assert kinds[0] == ""
    assert kinds[1].startswith("warm: ")


@pytest.mark.slow
@pytest.mark.parametrize("mode", DRAWS)
def test_programs(mode: str, tmp_path: Path) -> None:
    tasks = [fuzz.Task(seed, mode, "compile") for seed in range(PROGRAMS)]
    environment = fuzz.environment(str(tmp_path))
    pool: Pool[fuzz.Task] = Pool([str(fuzz.WORKER)], 1, SECONDS_OF_A_TASK, environment)
    records = dict(fuzz.outcomes(pool, tasks, warm=True))
    assert {task.seed: record["kind"] for task, record in records.items() if record["kind"]} == {}
    assert sum(record["stored"] for record in records.values()) >= PROGRAMS / 2


@pytest.mark.slow
def test_samples_of_operators(tmp_path: Path) -> None:
    tasks = conformance.list_tasks(None, "float32", EVERY_OP, 1)
    tasks = [task._replace(caches="cold") for task in tasks]
    kept = conformance.environment(str(tmp_path))
    records = dict(conformance.check_tasks(tasks, "mlcc", 1, SECONDS_OF_A_TASK, kept))
    failed = [record for record in records.values() if not conformance.record_ok(record)]
    assert not failed, "\n".join(f"{r['op']}: {r['reasons'][0]}" for r in failed)
    assert sum(record["stored"] for record in records.values()) >= len(tasks) / 2


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_models(name: str, fresh_cache: Path) -> None:
    pytest.importorskip("transformers")
    ((_, record),) = models.run_twice(name, [MODELS[name]], "mlcc", 900.0)
    assert record["reason"] == ""
    assert record["stored"] >= 1
