"""One file with all that lets a second machine start warm: kernels, torch's graphs, and frames.

It is a zip file without compression: its directory stands at the end, so that a file that was cut is no archive, and
what an entry says of its size is bounded by what the file has.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from mlcc import config
from mlcc._errors import Error
from mlcc.capture import frame_files, private_files
from mlcc.logging import get_logger
from mlcc.torch_private import aot_key, settings

_MARK = "mlcc-cache"  # the first entry
_FORMAT = b"1\n"
_LARGEST = 1 << 30  # bytes of an entry
_BROKEN = (
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    OverflowError,
    RuntimeError,
    ValueError,
    struct.error,
)


@dataclass(frozen=True)
class _Part:
    """One of the caches."""

    name: str  # the folder in the archive
    path: re.Pattern[str]  # of an entry in it
    folder: Callable[[], Path | None]  # None where the cache is off
    is_whole: Callable[[str, bytes], bool]  # whether these are the bytes of the entry of that path
    temporary: str  # how names begin that the cache takes for unfinished
    is_private: bool = False  # a folder that others can write to is refused


# magic, format, bytes of the kind, bytes of the payload, key (low, high), checksum: csrc/runtime/store.h
_STORE_HEADER = struct.Struct("<8sIIQQQ16s")


def _is_whole_kernel(path: str, data: bytes) -> bool:
    """By its header; the core looks at the checksum when it reads the file, and drops what is damaged."""
    if len(data) < _STORE_HEADER.size:
        return False
    magic, number, kind, payload, low, high, _ = _STORE_HEADER.unpack_from(data)
    if (magic, number) != (b"MLCCSTO\n", 1) or _STORE_HEADER.size + kind + payload != len(data):
        return False
    name = data[_STORE_HEADER.size :][:kind] + f"-{high:016x}{low:016x}".encode()
    return name == path.encode()


def _is_whole_graph(path: str, data: bytes) -> bool:
    """torch names its files by their content."""
    return path.rpartition("/")[2] == aot_key.file_name(data)


def _is_whole_frame(path: str, data: bytes) -> bool:
    key, _, name = path.partition("/")
    body = frame_files.body_of(key, data)
    return body is not None and name == frame_files.name_of(body)


def _kernel_folder() -> Path | None:
    folder = config.cache_directory() if config.cache_size_mb else None
    return folder and folder / "store"


def _graph_folder() -> Path | None:
    return Path(settings.cache_folder()) / "aotautograd" if config.torch_caches else None


def _frame_folder() -> Path | None:
    return frame_files.folder() if config.torch_caches and config.warm_start else None


# In the order in which they are written: who finds a frame finds what it needs.
_PARTS = (
    _Part(
        "kernels",
        re.compile(r"[a-z_]{1,40}-[0-9a-f]{32}"),
        _kernel_folder,
        _is_whole_kernel,
        "tmp-",
        is_private=True,
    ),
    _Part(
        "graphs",
        re.compile(r"[a-z0-9]{1,80}/[a-z2-7]{51}"),
        _graph_folder,
        _is_whole_graph,
        private_files.TEMPORARY,
    ),
    _Part(
        "frames",
        re.compile(r"[0-9a-f]{64}/[0-9a-f]{24}\.frame"),
        _frame_folder,
        _is_whole_frame,
        private_files.TEMPORARY,
    ),
)


def save_cache(path: str | os.PathLike[str]) -> dict[str, int]:
    """Write the disk caches to one file, for another machine's `mlcc.load_cache`.

    Kernels of `MLCC_CACHE_DIR`, and from torch's cache folder the graphs of AOTAutograd and the frames: all that is
    there, of other programs too. Returns how many `kernels`, `graphs` and `frames` were written, and `bytes`, the size
    of the file. What is damaged is left out. One state of the caches makes one file, byte for byte.

    Raises mlcc.Error where the file cannot be written; then there is none, or the one that was there before.

        counts = mlcc.save_cache("/srv/image/warm.zip")  # after a call of each kind
    """
    counts = {part.name: 0 for part in _PARTS}
    target = Path(path)
    temporary = None
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
        with os.fdopen(handle, "wb") as stream:
            with zipfile.ZipFile(stream, "w") as archive:
                archive.writestr(_entry(_MARK), _FORMAT)
                for part, name, data in _stored():
                    archive.writestr(_entry(f"{part.name}/{name}"), data)
                    counts[part.name] += 1
            size = stream.tell()
        os.replace(temporary, target)
    except OSError as error:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
        raise Error(f"cache archive {target}: cannot be written: {error}") from error
    return {**counts, "bytes": size}


def load_cache(path: str | os.PathLike[str]) -> dict[str, int]:
    """Take what `mlcc.save_cache` wrote on another machine into the disk caches of this one.

    Returns how many `kernels`, `graphs` and `frames` are new here, their `bytes`, and how many entries were `skipped`:
    those that are there, whose cache is off, or of which there are as many as are kept. What is there stays, unless it
    is damaged. Entries of another CPU, of another version of mlcc, torch or Python, or of functions that changed, are
    taken as well, and found by nothing. Call it before the first compilation.

    Nothing of the archive is run or unpickled here. But it holds machine code and pickle, which run when compiled
    functions use them: **load only archives that you would run as a program.**

    Raises mlcc.Error, and changes nothing, for a file that is no whole archive or holds something else than entries of
    these caches (other names, links, compression, entries of more than 1 GiB), and where `MLCC_CACHE_DIR` is a folder
    that others can write to. Raises mlcc.Error too where a cache cannot be written; what was written by then is whole.

        new = mlcc.load_cache("/srv/image/warm.zip")
    """
    source = Path(path)
    try:
        with open(source, "rb") as stream, zipfile.ZipFile(stream) as archive:
            entries = _checked(archive, os.fstat(stream.fileno()).st_size)
            folders = {part.name: _folder_to_write(part) for part in _PARTS}
            return _take(archive, entries, folders)
    except Error as error:
        raise Error(f"cache archive {source}: {error}") from error
    except OSError as error:
        raise Error(f"cache archive {source}: {error}") from error
    except _BROKEN as error:
        raise Error(f"cache archive {source}: it is no archive or damaged: {error}") from error


# -- writing the archive


def _entry(name: str) -> zipfile.ZipInfo:
    """Of a regular file, without a date: one state of the caches makes one archive."""
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3  # Unix
    entry.external_attr = (stat.S_IFREG | 0o600) << 16
    return entry


def _stored() -> Iterator[tuple[_Part, str, bytes]]:
    """The whole entries of the caches, in one order."""
    for part in _PARTS:
        folder = part.folder()
        if folder is None or not folder.is_dir():
            continue
        for name in sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*")):
            if not part.path.fullmatch(name):
                continue
            data = _read(folder / name)
            if data is not None and part.is_whole(name, data):
                yield part, name, data
            else:
                get_logger("cache").info("%s not saved: no whole file of this user", name)


def _read(path: Path) -> bytes | None:
    """All of a regular file of this user's that others cannot write to."""
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as stream:
            status = os.fstat(stream.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST:
                return None
            if private_files.is_of_others(status):
                return None
            return stream.read(_LARGEST)
    except OSError:  # deleted meanwhile, or a link
        return None


# -- reading the archive


def _checked(archive: zipfile.ZipFile, size: int) -> list[tuple[_Part, str, zipfile.ZipInfo]]:
    """The entries of an archive of `size` bytes, each of which is whole and belongs to a cache; else Error."""
    infos = archive.infolist()
    if not infos or infos[0].filename != _MARK:
        raise Error("mlcc.save_cache did not write it")
    claimed = 0
    for info in infos:
        claimed += info.file_size
        kind = stat.S_IFMT(info.external_attr >> 16)
        if kind not in (0, stat.S_IFREG) or info.orig_filename != info.filename:
            raise Error(f"{info.filename!r:.200}: no regular file")
        if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
            raise Error(f"{info.filename!r:.200}: compressed")
        if info.file_size > _LARGEST or claimed > size:
            raise Error(f"{info.filename!r:.200}: says that it has {info.file_size} bytes")
    if archive.read(infos[0]) != _FORMAT:
        raise Error("written by another version of mlcc")
    parts = {part.name: part for part in _PARTS}
    entries = []
    for info in infos[1:]:
        folder, _, name = info.filename.partition("/")
        part = parts.get(folder)
        if part is None or not part.path.fullmatch(name):
            raise Error(f"{info.filename!r:.200}: no name of a cache's entry")
        if not part.is_whole(name, archive.read(info)):
            raise Error(f"{info.filename}: damaged")
        entries.append((part, name, info))
    if len({info.filename for _, _, info in entries}) < len(entries):
        raise Error("it holds entries of one name")
    return sorted(entries, key=lambda entry: _PARTS.index(entry[0]))


def _folder_to_write(part: _Part) -> Path | None:
    """The part's folder; Error where it, or the one around it, is not the user's alone."""
    folder = part.folder()
    if folder is None or not part.is_private:
        return folder
    for place in (folder.parent, folder):
        if place.exists() and private_files.is_of_others(place.stat()):
            raise Error(f"{place}: others than this user may write into it")
    return folder


def _take(
    archive: zipfile.ZipFile,
    entries: list[tuple[_Part, str, zipfile.ZipInfo]],
    folders: dict[str, Path | None],
) -> dict[str, int]:
    counts = {part.name: 0 for part in _PARTS} | {"bytes": 0, "skipped": 0}
    for part, name, info in entries:
        folder = folders[part.name]
        if folder is None or not _is_wanted(part, name, folder):
            counts["skipped"] += 1
            continue
        _write(folder / name, archive.read(info), part)
        counts[part.name] += 1
        counts["bytes"] += info.file_size
    return counts


def _is_wanted(part: _Part, name: str, folder: Path) -> bool:
    """Whether the cache has no whole entry of that name, and room for one."""
    there = _read(folder / name)
    if there is not None and part.is_whole(name, there):
        return False
    beside = (folder / name).parent
    return part.name != "frames" or len(frame_files.variants(beside)) < frame_files.MOST_VARIANTS


def _write(path: Path, data: bytes, part: _Part) -> None:
    if part.is_private:
        path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_files.write(path, data, part.temporary)
