"""`mlcc.save_cache` and `load_cache`: a second machine starts warm, and no archive harms it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc import cli, config
from mlcc.capture import cache_archive, frame_files
from mlcc.torch_private import artifacts, settings

ROOT = Path(__file__).parents[2]

PROGRAM = """
import json
import sys
from pathlib import Path

import torch

import mlcc
from torch._dynamo.utils import counters

what, folder = sys.argv[1], Path(sys.argv[2])
loaded = {}
if what == "archive":
    loaded = mlcc.load_cache(folder / "warm.zip")
elif what == "artifacts":
    info = torch.compiler.load_cache_artifacts((folder / "artifacts").read_bytes())
    loaded = {"frames": len(info.mlcc_frame_artifacts)}

def f(a, b):
    a = torch.sin(a) * b
    print("a graph break", file=sys.stderr)
    return torch.softmax(a + 1, -1)

a = torch.arange(12.0).reshape(3, 4).requires_grad_()
b = torch.linspace(0, 1, 4)
compiled = torch.compile(f, backend="mlcc")
result = compiled(a, b)
torch.testing.assert_close(result, f(a, b))
result[:, 0].sum().backward()
with torch.no_grad():
    torch.testing.assert_close(compiled(a, b), f(a, b))
saved = {}
if what == "save":
    saved = mlcc.save_cache(folder / "warm.zip")
    (folder / "artifacts").write_bytes(torch.compiler.save_cache_artifacts()[0])
graphs, misses = counters["stats"]["unique_graphs"], mlcc.cache_info()["misses"]
print(json.dumps({"graphs": graphs, "misses": misses, "loaded": loaded, "saved": saved}))
"""


def run(what: str, folder: Path) -> dict[str, Any]:
    """A machine of its own: its caches are empty."""
    caches = folder / f"caches of {what}"
    variables = {
        "MLCC_CACHE_DIR": str(caches / "mlcc"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        "PYTHONPATH": str(ROOT),
        "MLCC_WARM_START": "1",
    }
    done = subprocess.run(
        [sys.executable, str(folder / "program.py"), what, str(folder)],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def test_another_machine_starts_warm(tmp_path: Path) -> None:
    """Nothing is traced and nothing compiled; kernels are not among torch's artifacts, and are compiled again."""
    (tmp_path / "program.py").write_text(PROGRAM)
    first = run("save", tmp_path)
    assert first["graphs"] > 0 and first["misses"] > 0
    saved = first["saved"]
    assert saved["kernels"] and saved["frames"]
    assert saved["bytes"] == (tmp_path / "warm.zip").stat().st_size
    second = run("archive", tmp_path)
    assert (second["graphs"], second["misses"]) == (0, 0)
    assert second["loaded"]["skipped"] == 0
    assert all(second["loaded"][name] == saved[name] for name in ("kernels", "graphs", "frames"))
    third = run("artifacts", tmp_path)
    assert (third["graphs"], third["loaded"]["frames"]) == (0, saved["frames"])
    assert third["misses"] > 0


# -- caches made by hand


def kernel(key: int, payload: bytes) -> tuple[str, bytes]:
    """Name and bytes of a kernel's file."""
    low, high = key & (1 << 64) - 1, key >> 64
    header = struct.pack("<8sIIQQQ16s", b"MLCCSTO\n", 1, 6, len(payload), low, high, bytes(16))
    return f"kernels/kernel-{key:032x}", header + b"kernel" + payload


def graph(content: bytes) -> tuple[str, bytes]:
    digest = base64.b32encode(hashlib.sha256(content).digest())[:51].decode().lower()
    return f"graphs/a{'b' * 51}/{digest}", content


def frame(body: bytes, key: str = "0") -> tuple[str, bytes]:
    data = frame_files.file_of(key * 64, body)
    return f"frames/{key * 64}/{frame_files.name_of(body)}", data


ENTRIES = dict([kernel(1 << 100, b"one"), kernel(2, b"two"), graph(b"traced"), frame(b"a frame")])


def places() -> dict[str, Path]:
    folder = config.cache_directory()
    assert folder is not None
    torch_folder = Path(settings.cache_folder())
    return {
        "kernels": folder / "store",
        "graphs": torch_folder / "aotautograd",
        "frames": torch_folder / "mlcc/frames",
    }


def path_of(name: str) -> Path:
    part, _, rest = name.partition("/")
    return places()[part] / rest


def fill(entries: dict[str, bytes] = ENTRIES) -> None:
    for name, data in entries.items():
        path = path_of(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def empty() -> None:
    for name in list(stored()):
        path_of(name).unlink()


def stored() -> dict[str, bytes]:
    """All files of the caches."""
    return {
        f"{part}/{path.relative_to(folder).as_posix()}": path.read_bytes()
        for part, folder in places().items()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def caches(fresh_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLCC_WARM_START", "1")


@pytest.fixture
def archive(caches: None, tmp_path: Path) -> Path:
    """What `save_cache` makes of ENTRIES; the caches are empty afterwards."""
    path = tmp_path / "warm.zip"
    fill()
    mlcc.save_cache(path)
    empty()
    return path


def test_what_is_saved_is_loaded(caches: None, tmp_path: Path) -> None:
    first, second = tmp_path / "a.zip", tmp_path / "b.zip"
    fill()
    counts = mlcc.save_cache(first)
    assert counts == {"kernels": 2, "graphs": 1, "frames": 1, "bytes": first.stat().st_size}
    os.utime(path_of(next(iter(ENTRIES))), (1, 1))
    mlcc.save_cache(str(second))
    assert first.read_bytes() == second.read_bytes()
    empty()
    size = sum(map(len, ENTRIES.values()))
    new = {"kernels": 2, "graphs": 1, "frames": 1, "bytes": size, "skipped": 0}
    assert mlcc.load_cache(first) == new
    assert stored() == ENTRIES
    assert {stat.S_IMODE(path_of(name).stat().st_mode) for name in ENTRIES} == {0o600}
    nothing = {"kernels": 0, "graphs": 0, "frames": 0, "bytes": 0, "skipped": 4}
    assert mlcc.load_cache(first) == nothing


def test_of_empty_caches(caches: None, tmp_path: Path) -> None:
    assert mlcc.save_cache(tmp_path / "empty.zip")["kernels"] == 0
    assert mlcc.load_cache(tmp_path / "empty.zip")["skipped"] == 0


def test_what_is_there_stays_unless_it_is_damaged(archive: Path) -> None:
    names = list(ENTRIES)
    other = kernel(1 << 100, b"another one")[1]
    fill({names[0]: other, names[1]: b"damaged", names[2]: b"damaged", names[3]: b"damaged"})
    counts = mlcc.load_cache(archive)
    assert (counts["kernels"], counts["graphs"], counts["frames"], counts["skipped"]) == (
        1,
        1,
        1,
        1,
    )
    assert stored() == ENTRIES | {names[0]: other}


def test_only_whole_entries_are_saved(caches: None, tmp_path: Path) -> None:
    """Not what is damaged, unfinished, a link, another's, or not of these caches."""
    fill()
    names = list(ENTRIES)
    for name in names[1:]:
        path_of(name).write_bytes(ENTRIES[name][:-1])
    store = places()["kernels"]
    (store / "tmp-1-1").write_bytes(b"unfinished")
    (store / kernel(3, b"")[0].partition("/")[2]).symlink_to(store / "tmp-1-1")
    open_to_others = path_of(kernel(4, b"x")[0])
    open_to_others.write_bytes(kernel(4, b"x")[1])
    open_to_others.chmod(0o666)
    counts = mlcc.save_cache(tmp_path / "warm.zip")
    assert (counts["kernels"], counts["graphs"], counts["frames"]) == (1, 0, 0)


def test_caches_that_are_off(archive: Path, tmp_path: Path) -> None:
    with config.patch(torch_caches=False):
        assert mlcc.load_cache(archive)["skipped"] == 2
        empty()
    with config.patch(cache_size_mb=0, warm_start=False):
        counts = mlcc.load_cache(archive)
        assert (counts["kernels"], counts["graphs"], counts["frames"]) == (0, 1, 0)
        assert mlcc.save_cache(tmp_path / "off.zip")["kernels"] == 0


def test_no_more_variants_than_are_kept(caches: None, tmp_path: Path) -> None:
    """Those of this machine stay."""
    fill(dict(frame(bytes([i])) for i in range(5)))
    mlcc.save_cache(tmp_path / "warm.zip")
    empty()
    own = dict(frame(bytes([100 + i])) for i in range(frame_files.MOST_VARIANTS - 1))
    fill(own)
    counts = mlcc.load_cache(tmp_path / "warm.zip")
    assert (counts["frames"], counts["skipped"]) == (1, 4)
    assert own.items() <= stored().items()


# -- bad archives


def entry(name: str, data: bytes = b"", kind: int = stat.S_IFREG, **fields: Any) -> Any:
    info = zipfile.ZipInfo(name)
    info.create_system = 3
    info.external_attr = (kind | 0o600) << 16
    for field, value in fields.items():
        setattr(info, field, value)
    return info, data


def write(path: Path, *entries: Any, mark: Any = ("mlcc-cache", b"1\n")) -> None:
    with zipfile.ZipFile(path, "w") as made:
        for name, data in [mark, *entries]:
            made.writestr(name, data)


GOOD = kernel(9, b"good")

BAD: dict[str, tuple[list[Any], str]] = {
    "a folder above": ([entry("kernels/../../x", b"x")], "no name"),
    "a folder above, in a frame": ([entry(f"frames/{'0' * 64}/../{'0' * 24}.frame")], "no name"),
    "an absolute path": ([entry("/etc/x", b"x")], "no name"),
    "another name": ([entry("kernels/x.so", b"x")], "no name"),
    "another folder": ([entry("fxgraph/x", b"x")], "no name"),
    "a temporary file": ([entry("kernels/tmp-1-1", b"x")], "no name"),
    "a line end": ([entry(GOOD[0] + "\n", GOOD[1])], "no name"),
    "a link": ([entry(GOOD[0], b"/etc/passwd", stat.S_IFLNK)], "no regular file"),
    "a folder": ([entry("kernels/", b"", stat.S_IFDIR)], "no regular file"),
    "a device": ([entry(GOOD[0], b"", stat.S_IFCHR)], "no regular file"),
    "compressed": (
        [entry(GOOD[0], bytes(10000), compress_type=zipfile.ZIP_DEFLATED)],
        "compressed",
    ),
    "a damaged kernel": ([entry(GOOD[0], GOOD[1][:-1])], "damaged"),
    "a kernel of another key": ([entry(kernel(8, b"")[0], GOOD[1])], "damaged"),
    "no header": ([entry(GOOD[0], b"x")], "damaged"),
    "a damaged frame": ([entry(frame(b"a")[0], frame(b"b")[1])], "damaged"),
    "a damaged graph": ([entry(graph(b"a")[0], b"b")], "damaged"),
}


@pytest.mark.parametrize(("entries", "message"), BAD.values(), ids=list(BAD))
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_bad_entries(entries: list[Any], message: str, caches: None, tmp_path: Path) -> None:
    """A good entry before the bad one is not taken either."""
    own = dict([kernel(77, b"own"), frame(b"own")])
    fill(own)
    write(tmp_path / "bad.zip", entry(*kernel(10, b"before")), *entries)
    with pytest.raises(mlcc.Error, match=f"cache archive .*bad.zip.*{message}"):
        mlcc.load_cache(tmp_path / "bad.zip")
    assert stored() == own
    assert not (tmp_path / "x").exists()


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_entries_of_one_name(caches: None, tmp_path: Path) -> None:
    write(tmp_path / "bad.zip", entry(*GOOD), entry(*GOOD))
    with pytest.raises(mlcc.Error, match="of one name"):
        mlcc.load_cache(tmp_path / "bad.zip")
    assert not stored()


@pytest.mark.parametrize(
    ("mark", "message"),
    [(("README", b""), "save_cache did not write it"), (("mlcc-cache", b"2\n"), "another version")],
)
def test_archives_of_others(mark: Any, message: str, caches: None, tmp_path: Path) -> None:
    write(tmp_path / "bad.zip", entry(*GOOD), mark=mark)
    with pytest.raises(mlcc.Error, match=message):
        mlcc.load_cache(tmp_path / "bad.zip")
    assert not stored()


def refused(path: Path, data: bytes, message: str = "cache archive") -> None:
    path.write_bytes(data)
    with pytest.raises(mlcc.Error, match=message):
        mlcc.load_cache(path)
    assert not stored()


def test_archives_that_were_cut(archive: Path, tmp_path: Path) -> None:
    data = archive.read_bytes()
    for size in range(len(data)):
        refused(tmp_path / "bad.zip", data[:size])
    refused(tmp_path / "bad.zip", b"no archive")


def test_archives_with_a_changed_byte(archive: Path, tmp_path: Path) -> None:
    """Refused, or nothing of what is taken has changed (dates, which are not read)."""
    data = archive.read_bytes()
    for place in range(len(data)):
        path = tmp_path / "bad.zip"
        path.write_bytes(data[:place] + bytes([data[place] ^ 0x41]) + data[place + 1 :])
        try:
            mlcc.load_cache(path)
        except mlcc.Error:
            assert not stored()
        else:
            assert stored().items() <= ENTRIES.items()
            empty()


@pytest.mark.parametrize("claim", [100_000, (1 << 30) + 1, (1 << 32) - 2])
def test_huge_claims(claim: int, archive: Path, tmp_path: Path) -> None:
    data = bytearray(archive.read_bytes())
    place = data.rindex(b"PK\x01\x02")  # of the last entry in the directory
    struct.pack_into("<II", data, place + 20, claim, claim)
    refused(tmp_path / "bad.zip", bytes(data), f"says that it has {claim} bytes")


def test_a_store_that_others_can_write_to(archive: Path) -> None:
    store = places()["kernels"]
    store.chmod(0o777)
    with pytest.raises(mlcc.Error, match="others than this user may write into it"):
        mlcc.load_cache(archive)
    assert not stored()


def test_files_that_cannot_be_written_or_read(
    archive: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(mlcc.Error, match="cannot be written"):
        mlcc.save_cache(tmp_path / "missing" / "warm.zip")
    with pytest.raises(mlcc.Error, match="No such file"):
        mlcc.load_cache(tmp_path / "missing.zip")
    before = archive.read_bytes()

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    fill()
    monkeypatch.setattr(cache_archive.os, "replace", full)
    with pytest.raises(mlcc.Error, match="No space left"):
        mlcc.save_cache(archive)
    assert archive.read_bytes() == before
    assert [path.name for path in tmp_path.glob(".*")] == []
    empty()
    with pytest.raises(mlcc.Error, match="No space left"):
        mlcc.load_cache(archive)
    assert not stored()


# -- the command line, and torch's artifacts


def test_commands(archive: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cache", "load", str(archive)]) == 0
    assert "kernels  2\n" in capsys.readouterr().out
    assert cli.main(["cache", "save", str(tmp_path / "again.zip")]) == 0
    assert "frames   1\n" in capsys.readouterr().out
    assert (tmp_path / "again.zip").read_bytes() == archive.read_bytes()
    assert cli.main(["cache", "load", str(tmp_path / "missing.zip")]) == 1
    assert cli.main(["cache", "--clear", "load", str(archive)]) == 1
    assert "--clear goes with neither" in capsys.readouterr().err


def test_artifacts_are_checked(caches: None, monkeypatch: pytest.MonkeyPatch) -> None:
    artifacts.register()
    artifacts.register()
    create: Callable[..., Any] = torch.compiler._cache.CacheArtifactFactory.create
    create(artifacts.TYPE, "0" * 64, b"a frame").populate_cache()
    create(artifacts.TYPE, "0" * 64, b"a frame").populate_cache()
    for key in ("../x", "/x", "0" * 63, "0" * 64 + "\n"):
        create(artifacts.TYPE, key, b"a frame").populate_cache()
    assert stored() == dict([frame(b"a frame")])

    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(frame_files.os, "replace", full)
    create(artifacts.TYPE, "1" * 64, b"another").populate_cache()
    assert stored() == dict([frame(b"a frame")])
