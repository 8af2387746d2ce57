"""Stored frames as files, `mlcc/frames/<key>/<name>.frame` in torch's cache folder: a magic, a digest, the frame.

The digest is of key and frame: guards alone do not tell the frame of one function from that of another.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mlcc.capture import private_files
from mlcc.logging import get_logger
from mlcc.torch_private import settings

MOST_VARIANTS = 8  # of one function: as many as Dynamo compiles of it by default

_MAGIC = b"mlcc frame 2\n"
_LARGEST = 1 << 28  # bytes of a file that is read
_KEY = re.compile(r"[0-9a-f]{64}")


def folder() -> Path:
    """Where all of them stand."""
    return Path(settings.cache_folder()) / "mlcc" / "frames"


def are_kept(options: Mapping[str, Any]) -> bool:
    """Whether this process stores and loads what it traces."""
    is_wanted = options["warm_start"] and options["torch_caches"]
    must_compile = options["dump"] or options["weights"] == "steal"
    return is_wanted and not must_compile and not settings.unstorable_process()


def variants(of: Path) -> list[Path]:
    """The files of one key, newest first."""
    times = {}
    for path in of.glob("*.frame"):
        with contextlib.suppress(OSError):  # deleted meanwhile, or a link to nothing
            times[path] = path.stat().st_mtime_ns
    return sorted(times, key=lambda path: (times[path], path), reverse=True)


def file_of(key: str, body: bytes) -> bytes:
    """The bytes of a file."""
    return _MAGIC + _digest(key, body) + body


def body_of(key: str, data: bytes) -> bytes | None:
    """What was stored under that key; None for bytes that are cut, changed or another key's."""
    body = data[len(_MAGIC) + 32 :]
    is_whole = data.startswith(_MAGIC) and data[len(_MAGIC) :][:32] == _digest(key, body)
    return body if is_whole else None


def _digest(key: str, body: bytes) -> bytes:
    return hashlib.sha256(key.encode() + b"\n" + body).digest()


def name_of(body: bytes) -> str:
    """The file's name."""
    return f"{hashlib.sha256(body).hexdigest()[:24]}.frame"


def read(path: Path) -> bytes | None:
    """What was written; None, with a line in the log, for a file that is cut, changed, of another key or user."""
    try:
        with open(path, "rb") as stream:
            if private_files.is_of_others(os.fstat(stream.fileno())):
                get_logger("cache").info("frame %s not read: others may write to it", path.name)
                return None
            data = stream.read(_LARGEST)
    except OSError as error:
        get_logger("cache").info("frame %s not read: %s", path.name, error)
        return None
    body = body_of(path.parent.name, data)
    if body is None:
        get_logger("cache").info("frame %s not read: the file is damaged", path.name)
    return body


def write(to: Path, body: bytes) -> None:
    """Store a frame; the oldest variants make room."""
    to.mkdir(parents=True, exist_ok=True)
    private_files.write(to / name_of(body), file_of(to.name, body))
    for old in variants(to)[MOST_VARIANTS:]:
        old.unlink(missing_ok=True)


def put(key: str, body: bytes) -> bool:
    """Store what another process made; False where it is there, or where the key has as many variants as are kept.

    What this machine has stays: nothing is known of which of them is of use. Whoever gives a key that is none gets a
    line in the log.
    """
    if not _KEY.fullmatch(key) or len(body) > _LARGEST - len(_MAGIC) - 32:
        get_logger("cache").info("frame not stored: %.80r is no key, or the frame too large", key)
        return False
    to = folder() / key
    there = [path for path in variants(to) if read(path) is not None]
    if len(there) >= MOST_VARIANTS or to / name_of(body) in there:
        return False
    write(to, body)
    return True


def put_artifact(key: str, body: bytes) -> None:
    """Store what `torch.compiler.load_cache_artifacts` brought; a full disk is no error of that function."""
    try:
        put(key, body)
    except OSError as error:
        get_logger("cache").info("frame not stored: %s", error)
