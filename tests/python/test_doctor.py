"""`python -m mlcc doctor`: one line for each part of an installation, a remedy for what does not work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import mlcc
from mlcc import _load, cli, config, doctor
from mlcc.capture import backend

PARTS = ["torch", "core", "options", "cpu", "code generator", "cache folder", "threads", "gpu"]


def of(subject: str) -> doctor.Finding:
    """The last finding about a part."""
    return [finding for finding in doctor.examine() if finding.subject == subject][-1]


def test_a_good_installation(fresh_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[9:].split("  ")[0] for line in lines] == PARTS
    assert all(line.startswith(("ok ", "warning ")) for line in lines)
    assert f"mlcc was built for {_load.built_torch_version()}" in lines[0]
    assert "a function was compiled, and its results are eager's" in lines[4]
    assert f"{fresh_cache}: writable" in lines[5]


def test_json(fresh_cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["doctor", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["works"] is True
    assert [finding["subject"] for finding in told["findings"]] == PARTS
    assert set(told["findings"][0]) == {"subject", "state", "text", "remedy"}


def test_another_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "built_torch_version", lambda: "2.1.0")
    found, *rest = doctor.examine()
    assert (found.subject, found.state) == ("torch", "problem")
    assert "but mlcc was built for 2.1.0" in found.text
    assert "pip install torch==2.1.0" in found.remedy
    assert {finding.subject for finding in rest} == {"core"}


def test_no_core(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def load_core() -> Any:
        raise mlcc.Error(f"the compiled core is missing; {_load.BUILD_HINT}")

    monkeypatch.setattr(doctor, "load_core", load_core)
    assert cli.main(["doctor"]) == 1
    line = capsys.readouterr().out.splitlines()[-1]
    assert line.split(None, 2) == [
        "problem", "core", f"the compiled core is missing; remedy: {_load.BUILD_HINT}"
    ]  # fmt: skip


def test_options(monkeypatch: pytest.MonkeyPatch, fresh_cache: Path) -> None:
    monkeypatch.setattr(config, "_assigned", {})
    monkeypatch.setenv("MLCC_STRIKT", "1")
    unknown = of("options")
    assert (unknown.state, unknown.remedy) == ("warning", "did you mean MLCC_STRICT?")
    monkeypatch.delenv("MLCC_STRIKT")
    monkeypatch.setenv("MLCC_DISABLE", "1")
    assert "everything runs eagerly" in of("options").text
    monkeypatch.setenv("MLCC_VERIFY", "alwys")
    findings = [finding for finding in doctor.examine() if finding.subject == "options"]
    assert [finding.state for finding in findings] == ["problem", "warning"]


def test_code_generator_that_is_missing_or_cut(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "libmlcc_llvm.so"
    monkeypatch.setattr(_load, "_LLVM_LIBRARY", library)
    (missing,) = doctor._of_code_generator()
    assert missing.state == "problem"
    assert f"{library} is missing" in missing.text
    with (Path(mlcc.__file__).parent / "libmlcc_llvm.so").open("rb") as file:
        library.write_bytes(file.read(1 << 16))
    (cut,) = doctor._of_code_generator()
    assert cut.state == "problem"
    assert "early, as of a copy that was interrupted" in cut.text
    assert list(doctor._of_cpu()) == []


def test_code_that_fails_or_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise mlcc.Error("kernel k: no code")

    monkeypatch.setattr(backend, "compile", broken)
    assert doctor.compile_and_compare() == "a function does not compile: kernel k: no code"
    monkeypatch.setattr(backend, "compile", lambda gm, inputs, **_: lambda x: (torch.zeros(7),))
    assert doctor.compile_and_compare().startswith("a function gives wrong numbers, off by ")
    monkeypatch.setattr(backend, "compile", lambda gm, inputs, **_: gm)
    assert doctor.compile_and_compare() == "a function was not compiled by mlcc"


def test_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MLCC_CACHE_DIR", str(tmp_path / "file" / "cache"))
    (finding,) = doctor._of_cache_folder()
    assert finding.state == "warning"
    assert "Not a directory; each process compiles anew" in finding.text
    assert "MLCC_CACHE_DIR" in finding.remedy
    monkeypatch.setenv("MLCC_CACHE_DIR", str(tmp_path / "new"))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "entry").write_bytes(bytes(3 << 20))
    (finding,) = doctor._of_cache_folder()
    assert "writable, 3.0 MiB of at most 1024" in finding.text
    monkeypatch.setenv("MLCC_CACHE_SIZE_MB", "0")
    (finding,) = doctor._of_cache_folder()
    assert finding.state == "warning"
    monkeypatch.delenv("MLCC_CACHE_SIZE_MB")
    monkeypatch.setattr(doctor, "_LEAST_FREE_MIB", 1 << 60)
    (finding,) = doctor._of_cache_folder()
    assert (finding.state, finding.remedy.split(",")[0]) == ("warning", "free some")


def test_more_threads_than_cpus() -> None:
    with mlcc.config.patch(num_threads=100_000):
        (finding,) = doctor._of_threads()
    assert finding.state == "warning"
    assert finding.remedy.startswith("num_threads=")


@pytest.mark.parametrize(
    ("reason", "remedy"),
    [
        ("no CUDA driver: libcuda.so.1: cannot open", "install or update NVIDIA's driver"),
        ("no NVRTC for a driver of CUDA 12.4", "pip install nvidia-cuda-nvrtc"),
        ("option gpu is off", "unset MLCC_GPU"),
    ],
)
def test_a_gpu_without_code(monkeypatch: pytest.MonkeyPatch, reason: str, remedy: str) -> None:
    class Core:
        def gpu_info(self) -> dict[str, str]:
            return {"reason": reason}

    monkeypatch.setattr(doctor, "load_core", Core)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    (finding,) = doctor._of_gpu()
    assert finding.state == "warning"
    assert reason in finding.text
    assert finding.remedy.startswith(remedy)


def test_a_check_that_fails_is_a_finding() -> None:
    def check() -> Any:
        yield doctor.Finding("cpu", doctor.OK, "fine so far")
        raise OSError("the disk is gone")

    first, second = doctor._guarded("cpu", check)
    assert first.state == "ok"
    assert (second.state, second.text) == (
        "problem",
        "cannot be examined: OSError: the disk is gone",
    )
