"""A seeded sample of `make caches`: kills, damage, a full disk and another build; and what its parts measure by."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from mlcc import config
from tests.caches import keys, mutations, run
from tests.caches.keys import CODE, NOT_VARIED, RUN, Setting
from tests.pool import Pool

SECONDS_OF_A_TASK = 600.0
TASKS = [
    run.Task("kills", 0, 4, cases=3),
    run.Task("damage", 0, 8, cases=3),
    run.Task("short files", 0, 1, cases=2),
]


@pytest.mark.slow
def test_kills_damage_and_a_full_disk() -> None:
    pool: Pool[run.Task] = Pool([str(run.WORKER)], 1, SECONDS_OF_A_TASK, run.environment())
    records = {task.part: run.record_of(outcome) for task, outcome in pool.run(TASKS)}
    assert {part: record["faults"] for part, record in records.items() if record["faults"]} == {}
    assert {part: record["done"] for part, record in records.items()} == {
        task.part: task.amount for task in TASKS
    }


@pytest.mark.slow
def test_another_build() -> None:
    pool: Pool[run.Task] = Pool([str(run.WORKER)], 1, SECONDS_OF_A_TASK, run.environment())
    ((_, outcome),) = pool.run([run.Task("versions", 0, 1, cases=1)])
    assert run.record_of(outcome) == {"faults": [], "done": 2}


@pytest.mark.slow
def test_two_processes_store_the_same_objects() -> None:
    found = keys.compare(0, [], random.Random(0), lambda: None, programs=0)
    assert found.faults == []
    assert found.objects > 10


def test_every_option_is_varied_or_named() -> None:
    """A new option stands in one of the tables, in that of its class."""
    classes = {name: row.option_class for name, row in config.table().items()}
    assert {*CODE, *RUN, *NOT_VARIED} == {*classes}
    assert {classes[name] for name in CODE} == {"code"}
    assert {classes[name] for name in (*RUN, *NOT_VARIED)} == {"run"}


def test_wrong_keys_are_told() -> None:
    of_code, of_run = Setting("winograd", "0"), Setting("logs", "+all")
    assert keys.of_setting(of_code, {"a"}, {"b"}) == []
    assert keys.of_setting(of_code, {"a", "b"}, {"b"}) == ["1 keys are the same"]
    assert keys.of_setting(of_run, {"a"}, {"a"}) == []
    assert keys.of_setting(of_run, {"a"}, {"a", "b"}) == ["1 keys are only in one"]
    assert "1 objects differ" in keys.differences({"a": b"1"}, {"a": b"2"})


def test_damage_is_damage(tmp_path: Path) -> None:
    files = [tmp_path / f"{place}.frame" for place in range(60)]
    for place, path in enumerate(files):
        path.write_bytes(b"MLCCSTO\n\x01" + bytes([1 + place]) * 100)
        path.chmod(0o600)
    before = {path: (path.read_bytes(), path.stat().st_mode) for path in files}
    done = mutations.mutate(files, 40, random.Random(3))
    assert len({what for what, _ in done}) > 8
    for what, path in done:
        if what != "exchange":  # its other half may have been damaged since
            there = path.is_file() and not path.is_symlink()
            assert not there or (path.read_bytes(), path.stat().st_mode) != before[path], what
