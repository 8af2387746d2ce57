"""Damage to files of caches."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path


def flip(data: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def extend(data: bytes, rng: random.Random) -> bytes:
    return data + rng.randbytes(rng.randint(1, 100))


def blank(data: bytes, rng: random.Random) -> bytes:
    """Zeros from some place on, as after a loss of power."""
    place = rng.randrange(len(data))
    return data[:place] + bytes(len(data) - place)


def drop(data: bytes, rng: random.Random) -> bytes:
    """Some bytes in the middle are gone."""
    place = rng.randrange(len(data))
    return data[:place] + data[place + rng.randint(1, 16) :]


def another_version(data: bytes, rng: random.Random) -> bytes:
    """Of the file's format: the number in its head."""
    place = 8 if data.startswith(b"MLCCSTO\n") else data.index(b"1") if b"1" in data[:16] else 1
    return data[:place] + bytes([data[place] + rng.randint(1, 9) & 255]) + data[place + 1 :]


def nothing(data: bytes, rng: random.Random) -> bytes:
    del data, rng
    return b""


_BYTES: tuple[Callable[[bytes, random.Random], bytes], ...] = (
    *(flip, flip, flip, cut, extend),
    *(blank, drop, another_version, nothing),
)


def _exchange(path: Path, other: Path) -> None:
    kept = path.read_bytes()
    path.write_bytes(other.read_bytes())
    other.write_bytes(kept)


def _link(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other)


def _dangling(path: Path, other: Path) -> None:
    path.unlink()
    path.symlink_to(other.with_name("missing"))


def _folder(path: Path, other: Path) -> None:
    path.unlink()
    path.mkdir()
    shutil.copy(other, path / "file")


def _open_to_others(path: Path, other: Path) -> None:
    del other
    path.chmod(0o666)


def _unreadable(path: Path, other: Path) -> None:
    del other
    path.chmod(0)


_PLACES: tuple[Callable[[Path, Path], None], ...] = (
    *(_exchange, _exchange, _exchange, _link, _dangling),
    *(_folder, _open_to_others, *([_unreadable] if os.geteuid() else [])),
)


def mutate(
    files: Sequence[Path], count: int, rng: random.Random, folders: bool = True
) -> list[tuple[str, Path]]:
    """Damage `count` of these files, each in one way; what was done to which. `folders`: some become folders."""
    places = [move for move in _PLACES if folders or move is not _folder]
    done = []
    alike = {path: [one for one in files if one.suffix == path.suffix] for path in files}
    for path in rng.sample(files, count):
        if not path.is_file() or path.is_symlink() or not (data := path.read_bytes()):
            continue
        if rng.random() < len(_BYTES) / (len(_BYTES) + len(places)):
            change = rng.choice(_BYTES)
            path.write_bytes(change(data, rng))
            done.append((change.__name__, path))
            continue
        move = rng.choice(places)
        others = [one for one in alike[path] if one != path and one.is_file()]
        move(path, rng.choice(others or [path]))
        done.append((move.__name__.strip("_"), path))
    return done
