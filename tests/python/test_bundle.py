"""`mlcc.export(format="bundle")`: object files in programs without a C library, for this CPU and for AArch64."""

from __future__ import annotations

import platform
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import mlcc
from mlcc.packages import bundle
from tests.python.accuracy import check_all, leaves
from tests.python.test_export import _models, in_double

ROOT = Path(__file__).resolve().parent.parent.parent

pytestmark = pytest.mark.usefixtures("nothing_kept")

# Reads the inputs one behind the other, writes the results, and ends with the model's status: by the system's calls.
PROGRAM = """
#include "NAME.h"

#if defined(__x86_64__)
enum { READ = 0, WRITE = 1, EXIT = 60 };
static long call(long number, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
#define START __attribute__((force_align_arg_pointer))
#else
enum { READ = 63, WRITE = 64, EXIT = 93 };
static long call(long number, long a, long b, long c) {
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2) : "memory");
  return x0;
}
#define START
#endif

static void all(long number, long file, void *data, long bytes) {
  for (long done = 0; done < bytes;) {
    const long count = call(number, file, (long)((char *)data + done), bytes - done);
    if (count <= 0) call(EXIT, 99, 0, 0);
    done += count;
  }
}

#define ALIGNED __attribute__((aligned(64))) static unsigned char
ALIGNED arena[ARENA_BYTES];
MEMORY

START void _start(void) {
  READS
  const NAME_inputs inputs = {INPUTS};
  const NAME_outputs outputs = {OUTPUTS};
  const int status = NAME_run(&inputs, &outputs, arena);
  WRITES
  call(EXIT, status, 0, 0);
}
"""

FREESTANDING = ["-O1", "-ffreestanding", "-fno-stack-protector", "-nostdlib", "-static"]
MACHINES = {
    "native": ([], "gcc", platform.machine()),
    "neoverse-n1": (["qemu-aarch64"], "aarch64-linux-gnu-gcc", "aarch64"),
}


def _bytes(value: torch.Tensor) -> bytes:
    bits = value.detach().view(torch.uint16) if value.dtype == torch.bfloat16 else value.detach()
    return bits.contiguous().numpy().tobytes()


def _program(name: str, given: Sequence[bytes], sizes: Sequence[int]) -> str:
    memory = [f"ALIGNED in{i}[{max(len(data), 1)}];" for i, data in enumerate(given)]
    memory += [f"ALIGNED out{i}[{max(size, 1)}];" for i, size in enumerate(sizes)]
    parts = {
        "ARENA_BYTES": f"{name.upper()}_ARENA_BYTES",
        "MEMORY": "\n".join(memory),
        "READS": " ".join(f"all(READ, 0, in{i}, {len(data)});" for i, data in enumerate(given)),
        "WRITES": " ".join(f"all(WRITE, 1, out{i}, {size});" for i, size in enumerate(sizes)),
        "INPUTS": ", ".join(f"(void *)in{i}" for i in range(len(given))) or "0",
        "OUTPUTS": ", ".join(f"(void *)out{i}" for i in range(len(sizes))),
        "NAME": name,
    }
    text = PROGRAM
    for word, value in parts.items():
        text = text.replace(word, value)
    return text


def _run(
    folder: Path, target: str, given: Sequence[bytes], sizes: Sequence[int]
) -> tuple[int, list[bytes]]:
    """What a program says of the bundle `m` in the folder: its status, and the results."""
    runner, compiler, _ = MACHINES[target]
    (folder / "main.c").write_text(_program("m", given, sizes))
    command = [compiler, *FREESTANDING, "-Wall", "-Werror", "-o", "m", "main.c", "m.o"]
    subprocess.run(command, check=True, cwd=folder, timeout=300)
    ended = subprocess.run(
        [*runner, folder / "m"],
        input=b"".join(given),
        capture_output=True,
        check=False,
        timeout=300,
    )
    results, place = [], 0
    for size in sizes:
        results.append(ended.stdout[place : place + size])
        place += size
    return ended.returncode, results


def _tensor(data: bytes, like: torch.Tensor) -> torch.Tensor:
    """The bytes of a result; at least one, which an empty result has not."""
    found = torch.frombuffer(bytearray(data or bytes(8)), dtype=like.dtype)
    return found[: like.numel()].view(like.shape)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [value for value in leaves(values) if isinstance(value, torch.Tensor)]


class Passed(nn.Module):
    """Results that no kernel writes: arguments, weights, views of both, one twice."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(3, 4))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x + 1
        return x, x.t(), self.table[1:], self.table.t(), y, y, y[:, 1], x[0].expand(3, -1)


def _cases() -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    return {**_models(), "passed": (Passed(), (torch.randn(4, 5),), {})}


@pytest.mark.parametrize("target", MACHINES)
@pytest.mark.parametrize("name", sorted(_cases()))
def test_a_program_without_a_c_library(name: str, target: str, tmp_path: Path) -> None:
    runner, compiler, _ = MACHINES[target]
    if any(shutil.which(tool) is None for tool in (*runner, compiler)):
        pytest.skip("there is nothing that makes or runs such programs")
    model, args, kwargs = _cases()[name]
    model = model.eval()
    mlcc.export(
        model,
        args,
        tmp_path / "m",
        kwargs=kwargs,
        target=target,
        format="bundle",
        check=target == "native",
    )
    with torch.no_grad():
        expected = _tensors(model(*args, **kwargs))
        exact = _tensors(in_double(model, *args, **kwargs))
    kept: list[tuple[torch.Tensor, torch.Tensor]] = []  # results that are one tensor are one output
    for value, reference in zip(expected, exact, strict=True):
        if all(value is not known for known, _ in kept):
            kept.append((value, reference))
    sizes = [value.numel() * value.element_size() for value, _ in kept]
    status, results = _run(tmp_path, target, list(map(_bytes, _tensors((args, kwargs)))), sizes)
    assert status == 0
    for data, (value, reference) in zip(results, kept, strict=True):
        check_all(_tensor(data, value), value.contiguous(), reference)


def test_the_object_asks_for_nothing(tmp_path: Path) -> None:
    model, args, kwargs = _models()["convolutions"]
    mlcc.export(model.eval(), args, tmp_path / "m", kwargs=kwargs, format="bundle", check=False)
    symbols = subprocess.run(
        ["nm", tmp_path / "m.o"], check=True, capture_output=True, text=True
    ).stdout
    assert [line.split()[-1] for line in symbols.splitlines() if " U " in line] == []
    assert [line.split()[-1] for line in symbols.splitlines() if " T " in line] == ["m_run"]


def test_large_arrays_lie_in_the_arena(tmp_path: Path) -> None:
    model = nn.Conv2d(64, 64, 3, padding=1).eval()
    x = torch.randn(1, 64, 28, 28)
    mlcc.export(model, (x,), tmp_path / "m", format="bundle", target="x86-64-v3")
    mlcc.export(model, (x,), tmp_path / "m.mlcc", target="x86-64-v3", check=False)
    told = dict(
        line.split()[1:3]
        for line in (tmp_path / "m.h").read_text().splitlines()
        if "_BYTES" in line
    )
    manifest = mlcc.load(tmp_path / "m.mlcc").manifest
    assert manifest["stack_bytes"] > 100_000  # of a transformed image
    assert int(told["M_STACK_BYTES"]) < 20_000
    assert int(told["M_ARENA_BYTES"]) > manifest["stack_bytes"] // 2
    status, results = _run(tmp_path, "native", [_bytes(x)], [64 * 28 * 28 * 4])
    assert status == 0
    with torch.no_grad():
        check_all(_tensor(results[0], model(x)), model(x), in_double(model, x))


def test_weights_beside_the_object(tmp_path: Path) -> None:
    model = nn.Linear(8, 3).eval()
    x = torch.randn(2, 8)
    mlcc.export(model, (x,), tmp_path / "m", format="bundle", weights="external")
    weights = (tmp_path / "m.weights").read_bytes()
    # The program's second input is the pointer to them.
    status, results = _run(tmp_path, "native", [_bytes(x), weights], [24])
    assert status == 0
    with torch.no_grad():
        check_all(_tensor(results[0], model(x)), model(x), in_double(model, x))


class Looked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 3)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.table(ids)


def test_the_model_refuses_its_data(tmp_path: Path) -> None:
    mlcc.export(Looked().eval(), (torch.tensor([1, 2]),), tmp_path / "m", format="bundle")
    status, _ = _run(tmp_path, "native", [_bytes(torch.tensor([1, 9]))], [24])
    assert status > 0
    assert f"case {status}: return" in (tmp_path / "m.h").read_text()
    status, _ = _run(tmp_path, "native", [_bytes(torch.tensor([1, 3]))], [24])
    assert status == 0


def test_what_a_bundle_has_not(tmp_path: Path) -> None:
    args = (torch.randn(2, 8),)
    model = nn.Linear(8, 3).eval()
    cases: list[tuple[dict[str, Any], str]] = [
        ({"format": "zip"}, "format 'zip'"),
        ({"format": "bundle", "weights": "none"}, "weights 'none'"),
        ({"format": "bundle", "refit": True}, "refitted"),
        ({"weights": "external"}, "packed"),
        (
            {"format": "bundle", "dynamic_shapes": ({0: torch.export.Dim("batch", min=1, max=4)},)},
            "sizes of a bundle are fixed",
        ),
    ]
    for options, told in cases:
        with pytest.raises(mlcc.Error, match=told):
            mlcc.export(model, args, tmp_path / "m", **options)
    with pytest.raises(mlcc.Error, match="nowhere: no such folder"):
        mlcc.export(model, args, tmp_path / "nowhere" / "m", format="bundle")
    assert list(tmp_path.iterdir()) == []


def test_names_are_those_of_c() -> None:
    assert [bundle.c_name(text) for text in ("a.b-c", "3d", "", "é")] == [
        "a_b_c",
        "m_3d",
        "m_",
        "_",
    ]


class Named(nn.Module):
    """Arguments with names that C, C++ or a compiler has for something else."""

    def forward(
        self,
        int: torch.Tensor,
        double: torch.Tensor,
        new: torch.Tensor,
        linux: torch.Tensor,
        weights: torch.Tensor,
        uint8_t: torch.Tensor,
    ) -> torch.Tensor:
        return int + double * new - linux * weights + uint8_t


@pytest.mark.parametrize("compiler", ["gcc", "g++"])
def test_names_of_arguments_that_are_keywords(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    args = tuple(torch.randn(3) for _ in range(6))
    mlcc.export(Named().eval(), args, tmp_path / "m", format="bundle", check=False)
    (tmp_path / "m.c").write_text('#include "m.h"\n')
    language = "c" if compiler == "gcc" else "c++"
    command = [compiler, "-x", language, "-Wall", "-Werror", "-fsyntax-only", "m.c"]
    subprocess.run(command, check=True, cwd=tmp_path)


def test_paths_with_dots(tmp_path: Path) -> None:
    model = nn.Linear(2, 1).eval()
    for name in ("net.v1", "net.v2.o"):
        mlcc.export(model, (torch.randn(1, 2),), tmp_path / name, format="bundle", check=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "net.v1.h",
        "net.v1.o",
        "net.v2.h",
        "net.v2.o",
    ]
    assert "int net_v1_run(" in (tmp_path / "net.v1.h").read_text()


@pytest.mark.parametrize("compiler", ["gcc", "musl-gcc"])
def test_the_example_runs(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    folder = ROOT / "examples" / "packages"
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 5)).eval()
    image = torch.arange(12.0).view(1, 3, 2, 2)
    mlcc.export(model, (image,), tmp_path / "classifier", format="bundle", target="x86-64-v3")
    program = tmp_path / "classify"
    sources = [folder / "bundle.c", tmp_path / "classifier.o"]
    subprocess.run([compiler, "-static", f"-I{tmp_path}", *sources, "-o", program], check=True)
    told = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    with torch.no_grad():
        assert told == f"class {int(model(torch.full((1, 3, 2, 2), 0.5)).argmax())}\n"
