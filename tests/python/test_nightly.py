"""The driver of the long runs: what has ended is not run again, what fails is told, its parts take their options."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import nightly

SCALE = nightly.Scale(0.01, 1)
WRITE = "import pathlib, sys; pathlib.Path(sys.argv[1]).open('a').write('x'); print('it ran')"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(nightly, "FOLDER", tmp_path)
    return tmp_path


def run(monkeypatch: pytest.MonkeyPatch, parts: dict[str, list[nightly.Command]]) -> int:
    chosen: dict[str, Callable[[nightly.Scale], list[nightly.Command]]] = {
        name: lambda scale, commands=commands: commands  # type: ignore[misc]
        for name, commands in parts.items()
    }
    monkeypatch.setattr(nightly, "PARTS", chosen)
    monkeypatch.setattr(sys, "argv", ["nightly.py"])
    return nightly.main()


def test_parts_are_run_once_and_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    count = folder / "count"
    good = [[sys.executable, "-c", WRITE, str(count)]]
    bad = [[sys.executable, "-c", "print('7 of 9 right'); exit(3)"], *good]
    assert run(monkeypatch, {"good": good}) == 0
    assert run(monkeypatch, {"good": good, "bad": bad}) == 1
    assert count.read_text() == "x"  # a part ends at its first failure, and is not run again
    page = (folder / "summary.md").read_text()
    assert "2 of 2 parts have ended, 1 failed" in page
    assert "| [good](good.log) | passed |" in page
    assert "| [bad](bad.log) | FAILED, exit status 3 |" in page
    assert "| it ran |" in page
    assert "## bad\n" in page
    assert "## good\n" not in page
    assert page.count("7 of 9 right") == 2


def test_a_part_that_was_stopped_is_run_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*arguments: object, **options: object) -> None:
        raise KeyboardInterrupt

    good = [[sys.executable, "-c", WRITE, str(folder / "count")]]
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "run", stop)
        with pytest.raises(KeyboardInterrupt):
            run(monkeypatch, {"good": good})
    assert run(monkeypatch, {"good": good}) == 0
    assert (folder / "count").read_text() == "x"


@pytest.mark.parametrize("name", ["states", "states-warm", "conformance-warm", "caches"])
def test_commands_are_understood(name: str) -> None:
    """By the runners' own parsers: an option that is not there would end a night at its first minute."""
    ((_, path, *options),) = nightly.PARTS[name](SCALE)
    done = subprocess.run(
        [sys.executable, path, *options, "--help"],
        cwd=nightly.ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert all(option in done.stdout for option in options if option.startswith("--"))


def test_scales() -> None:
    assert (SCALE.of(3000), SCALE.of(79), SCALE.every) == ("30", "1", "100")
    assert (nightly.Scale(1.0, 2).of(79), nightly.Scale(1.0, 2).every) == ("79", "1")
