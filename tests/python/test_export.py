"""`mlcc.export`: models as files, beside eager, from Python with torch, without it, and from C."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import mlcc
import mlcc.runtime
from mlcc._load import load_core
from mlcc.packages import check as checks
from mlcc.runtime import PackageError
from tests.python.accuracy import check_all, to_double

ROOT = Path(__file__).resolve().parent.parent.parent
RUNTIME = ROOT / "mlcc" / "libmlcc_runtime.so"

pytestmark = pytest.mark.usefixtures("nothing_kept")


def in_double(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """What a copy of the model computes in f64."""
    return copy.deepcopy(model).double()(*to_double(args), **to_double(kwargs))


class Block(nn.Module):
    """A transformer layer with what stands around it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 32)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 7)

    def forward(self, ids: torch.Tensor, mask: torch.Tensor | None = None) -> dict[str, Any]:
        hidden = self.layer(self.embedding(ids))
        if mask is not None:
            hidden = hidden * mask.unsqueeze(-1)
        return {"scores": self.head(hidden), "best": self.head(hidden).argmax(-1), "none": None}


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.BatchNorm2d(16),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, padding=1, groups=16),
            nn.Conv2d(16, 24, 1),
            nn.ReLU(),
            nn.ConvTranspose2d(24, 4, 2, stride=2),
            nn.Upsample(scale_factor=2, mode="bilinear"),
        )

    def forward(self, image: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        out = self.body(image)
        return out, nn.functional.max_pool2d(out, 2).flatten(1).softmax(-1)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 20, batch_first=True)

    def forward(self, x: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        return self.lstm(x, state)


class Views(nn.Module):
    """Results that are inputs, views of them, weights, constants, and each other."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 5))
        self.register_buffer("table", torch.arange(6))

    def forward(self, x: torch.Tensor, number: float = 2.0) -> Any:
        y = x * number
        return [x, x.t(), y, (y, y[1:]), self.weight, self.table + 1, 7, torch.ones(()), x[:0]]


def _models() -> dict[str, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]:
    torch.manual_seed(0)
    ids = torch.randint(0, 50, (2, 9))
    state = (torch.randn(1, 2, 20), torch.randn(1, 2, 20))
    return {
        "block": (Block(), (ids,), {"mask": torch.rand(2, 9)}),
        "convolutions": (Convolutions(), (torch.randn(2, 3, 20, 28),), {}),
        "recurrent": (Recurrent(), (torch.randn(2, 6, 12), state), {}),
        "views": (Views(), (torch.randn(3, 4),), {}),
        "bf16": (
            nn.Sequential(nn.Linear(24, 40), nn.GELU()).bfloat16(),
            (torch.randn(5, 24).bfloat16(),),
            {},
        ),
        "f64": (
            nn.Sequential(nn.Linear(6, 9), nn.LayerNorm(9)).double(),
            (torch.randn(5, 6).double(),),
            {},
        ),
    }


@pytest.mark.parametrize("name", sorted(_models()))
def test_package_computes_what_the_model_does(name: str, tmp_path: Path) -> None:
    model, args, kwargs = _models()[name]
    model.eval()
    mlcc.export(model, args, tmp_path / "m.mlcc", kwargs=kwargs)
    package = mlcc.load(tmp_path / "m.mlcc")
    found = package(*args, **kwargs)
    with torch.no_grad():
        expected = model(*args, **kwargs)
        reference = in_double(model, *args, **kwargs)
    check_all(found, expected, reference)


def test_containers_are_those_of_the_model(tmp_path: Path) -> None:
    model, args, _ = _models()["views"]
    mlcc.export(model.eval(), args, tmp_path / "m.mlcc")
    found = mlcc.load(tmp_path / "m.mlcc")(*args)
    assert isinstance(found, list) and isinstance(found[3], tuple) and found[6] == 7
    assert torch.equal(found[0], args[0]) and torch.equal(found[1], args[0].t())
    assert found[1].stride() == args[0].t().stride()
    assert found[0].data_ptr() != args[0].data_ptr()  # results are the caller's own
    assert torch.equal(found[4], model.weight) and found[7].item() == 1 and found[8].shape == (0, 4)


def test_the_same_bits_with_torch_and_without(tmp_path: Path) -> None:
    model, args, kwargs = _models()["block"]
    mlcc.export(model.eval(), args, tmp_path / "m.mlcc", kwargs=kwargs)
    with_torch = mlcc.load(tmp_path / "m.mlcc")(*args, **kwargs)
    plain = mlcc.runtime.load(tmp_path / "m.mlcc", copy_weights=True)
    without = plain(args[0].numpy(), mask=kwargs["mask"].numpy())
    assert without["none"] is None
    for key in ("scores", "best"):
        assert numpy.array_equal(with_torch[key].numpy(), without[key])
    again = plain(args[0], mask=kwargs["mask"])  # DLPack
    assert numpy.array_equal(again["scores"], without["scores"])


def _run_python(program: str, folder: Path) -> None:
    """In a process of its own, which ends well."""
    subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder,
        check=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )


def test_runs_in_a_process_without_torch(tmp_path: Path) -> None:
    model, args, _ = _models()["convolutions"]
    mlcc.export(model.eval(), args, tmp_path / "m.mlcc")
    numpy.save(tmp_path / "x.npy", args[0].numpy())
    program = (
        "import sys, numpy, mlcc.runtime\n"
        "a, b = mlcc.runtime.load('m.mlcc')(numpy.load('x.npy'))\n"
        "assert 'torch' not in sys.modules\n"
        "numpy.save('y.npy', a)\n"
    )
    _run_python(program, tmp_path)
    found = torch.from_numpy(numpy.load(tmp_path / "y.npy"))
    with torch.no_grad():
        check_all(found, model(*args)[0], in_double(model, *args)[0])


LANGUAGES = {
    "c": f"gcc -std=c11 -Wall -Wextra -pedantic -Werror -I{ROOT}/csrc/package SOURCE {RUNTIME}",
    "cpp": f"g++ -std=c++17 -Wall -Wextra -pedantic -Werror -I{ROOT}/csrc/package SOURCE {RUNTIME}",
    "rs": f"rustc --edition=2021 -O SOURCE -l mlcc_runtime -L {RUNTIME.parent} -C link-arg=-Wl,-rpath,{RUNTIME.parent}",
}


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_program_runs_it(language: str, tmp_path: Path) -> None:
    """The examples of the documentation, which need nothing but the C library."""
    command = LANGUAGES[language]
    if shutil.which(command.split()[0]) is None:
        pytest.skip(f"there is no {command.split()[0]}")
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    examples = ROOT / "examples" / "packages"
    told = subprocess.run(
        [sys.executable, examples / "classifier.py", tmp_path],
        check=True,
        capture_output=True,
        text=True,
        env=env,
    ).stdout
    program = tmp_path / "classify"
    source = f"{examples}/classify.{language}"
    subprocess.run([*command.replace("SOURCE", source).split(), "-o", program], check=True)

    def run(package: Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, package, tmp_path / "image.f32"],
            check=False,
            capture_output=True,
            text=True,
            env={**os.environ, "LD_LIBRARY_PATH": str(RUNTIME.parent)},
        )

    assert run(tmp_path / "classifier.mlcc").stdout == told.splitlines()[-1] + "\n"
    refused = run(Path(source))
    assert refused.returncode == 1 and "no package of mlcc" in refused.stderr


def test_the_runtime_is_small_and_needs_the_c_library_alone() -> None:
    dynamic = subprocess.run(
        ["readelf", "-dW", RUNTIME], check=True, capture_output=True, text=True
    ).stdout
    needed = {
        line.split("[")[1].split(".so")[0] for line in dynamic.splitlines() if "(NEEDED)" in line
    }
    assert needed <= {"libc", "libm", "ld-linux-x86-64"}
    assert RUNTIME.stat().st_size <= 250_000


# -- sizes that vary


def test_sizes_that_vary(tmp_path: Path) -> None:
    model, args, kwargs = _models()["block"]
    batch, length = Dim("batch", min=1, max=16), Dim("length", min=1, max=64)
    shapes = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    told = mlcc.export(
        model.eval(), args, tmp_path / "m.mlcc", kwargs=kwargs, dynamic_shapes=shapes
    )
    assert told.largest_error is not None
    package = mlcc.load(tmp_path / "m.mlcc")
    assert package.inputs[0].sizes == (-1, -1) and package.inputs[0].size_texts == (
        "batch",
        "length",
    )
    assert package.outputs[0].size_texts == ("batch", "length", "7")
    assert package.manifest["sizes"]["batch"] == {"min": 1, "max": 16, "usual": 2}
    for sizes in ((1, 1), (16, 64), (2, 9), (1, 33), (5, 2)):
        ids, mask = torch.randint(0, 50, sizes), torch.rand(sizes)
        with torch.no_grad():
            expected = model(ids, mask)
            reference = in_double(model, ids, mask)
        check_all(package(ids, mask=mask), expected, reference)
    small, large = ([torch.zeros(s, s, dtype=torch.int64), torch.zeros(s, s)] for s in (1, 16))
    assert 0 < package.arena_bytes(small) < package.arena_bytes(large)


@pytest.mark.parametrize(
    ("ids", "mask", "told"),
    [
        ((17, 3), (17, 3), "size batch: found 17, expected 1 to 16"),
        ((2, 0), (2, 0), "size length: found 0, expected 1 to 64"),
        ((2, 3), (2, 4), r"input mask: found sizes \[2, 4\], expected \[batch, length\]"),
        ((2, 3, 1), (2, 3), r"input ids: found 3 dimensions, expected \[batch, length\]"),
    ],
)
def test_sizes_outside_of_their_ranges(
    ids: tuple[int, ...], mask: tuple[int, ...], told: str, tmp_path: Path
) -> None:
    model, args, kwargs = _models()["block"]
    batch, length = Dim("batch", min=1, max=16), Dim("length", min=1, max=64)
    shapes = {"ids": {0: batch, 1: length}, "mask": {0: batch, 1: length}}
    mlcc.export(
        model.eval(), args, tmp_path / "m.mlcc", kwargs=kwargs, dynamic_shapes=shapes, check=False
    )
    package = mlcc.load(tmp_path / "m.mlcc")
    with pytest.raises(PackageError, match=told):
        package(torch.zeros(ids, dtype=torch.int64), mask=torch.zeros(mask))
    package(*args, **kwargs)  # it is of use after that


class Branches(nn.Module):
    """Of two sizes that stand in a relation another function."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2 if x.shape[0] * 2 != x.shape[1] else x - 1


def test_relations_of_sizes_that_the_trace_assumed(tmp_path: Path) -> None:
    shapes = {"x": {0: Dim.AUTO, 1: Dim.AUTO}}
    mlcc.export(Branches().eval(), (torch.ones(3, 5),), tmp_path / "m.mlcc", dynamic_shapes=shapes)
    package = mlcc.load(tmp_path / "m.mlcc")
    assert torch.equal(package(torch.ones(7, 2)), torch.full((7, 2), 2.0))
    with pytest.raises(PackageError, match=r"sizes: expected .*, where .* is 3"):
        package(torch.ones(3, 6))


# -- who uses it


def test_threads_share_a_package(tmp_path: Path) -> None:
    model, args, _ = _models()["convolutions"]
    mlcc.export(model.eval(), args, tmp_path / "m.mlcc")
    package = mlcc.load(tmp_path / "m.mlcc")
    images = [torch.randn(2, 3, 20, 28) for _ in range(8)]
    expected = [package(image)[0] for image in images]
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(20):
            if not torch.equal(package(images[index])[0], expected[index]):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(images))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_strides_are_taken_or_copied(tmp_path: Path) -> None:
    mlcc.export(nn.ReLU().eval(), (torch.randn(3, 4),), tmp_path / "m.mlcc")
    x = torch.randn(4, 3).t()
    assert torch.equal(mlcc.load(tmp_path / "m.mlcc")(x), x.relu())
    plain = mlcc.runtime.load(tmp_path / "m.mlcc")
    assert numpy.array_equal(plain(x.numpy()), x.relu().numpy())
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    mlcc.export(nn.ReLU().eval(), (channels_last,), tmp_path / "n.mlcc")
    package = mlcc.load(tmp_path / "n.mlcc")
    for given in (channels_last, channels_last.contiguous()):
        found = package(given)
        assert torch.equal(found, given.relu()) and found.stride() == channels_last.stride()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (torch.randn(3, 5), r"found sizes \[3, 5\], expected \[3, 4\]"),
        (torch.randn(3, 4).double(), "found dtype torch.float64, expected torch.float32"),
        (torch.randn(12), "found 1 dimensions"),
        (3.0, "found a float, expected a tensor"),
    ],
)
def test_arguments_that_do_not_fit(value: Any, told: str, tmp_path: Path) -> None:
    mlcc.export(nn.ReLU().eval(), (torch.randn(3, 4),), tmp_path / "m.mlcc")
    with pytest.raises((PackageError, TypeError), match=told):
        mlcc.load(tmp_path / "m.mlcc")(value)
    with pytest.raises(TypeError, match="expected 1"):
        mlcc.load(tmp_path / "m.mlcc")(torch.randn(3, 4), torch.randn(3, 4))


def test_the_program_refuses_its_data(tmp_path: Path) -> None:
    mlcc.export(nn.Embedding(5, 3).eval(), (torch.tensor([1, 4]),), tmp_path / "m.mlcc")
    package = mlcc.load(tmp_path / "m.mlcc")
    with pytest.raises(PackageError, match="out of range") as error:
        package(torch.tensor([1, 5]))
    assert error.value.status == 4  # MLCC_CHECK_FAILED
    assert package(torch.tensor([0, 4])).shape == (2, 3)


# -- what a reviewer found


def _module(function: Any, **attributes: Any) -> nn.Module:
    kind = type("Small", (nn.Module,), {"forward": function})
    module: nn.Module = kind().eval()
    for name, value in attributes.items():
        setattr(module, name, value)
    return module


def test_a_least_size_that_the_user_names_holds(tmp_path: Path) -> None:
    model = _module(lambda self, x: x * 2 if x.shape[0] > 1 else x * 3)
    shapes = {"x": {0: Dim("n", min=2, max=64)}}
    ep = torch.export.export(model, (torch.ones(5, 2),), dynamic_shapes=shapes, strict=False)
    before = str(ep.range_constraints)
    mlcc.export(ep, (torch.ones(5, 2),), tmp_path / "e.mlcc", check=False)
    assert str(ep.range_constraints) == before
    mlcc.export(model, (torch.ones(5, 2),), tmp_path / "m.mlcc", dynamic_shapes=shapes)
    with pytest.raises(PackageError, match="size n: found 1, expected 2 to 64"):
        mlcc.load(tmp_path / "m.mlcc")(torch.ones(1, 2))


def test_what_the_trace_made_of_a_size_is_compared_with_the_model(tmp_path: Path) -> None:
    model = _module(lambda self, x: x * 3 if x.shape[0] == 1 else x * 2)
    with pytest.raises(mlcc.Error, match="result 0 is wrong"):
        mlcc.export(
            model,
            (torch.ones(5, 2),),
            tmp_path / "m.mlcc",
            dynamic_shapes={"x": {0: Dim("n", min=1, max=9)}},
        )


def test_arguments_that_share_memory_are_taken_apart(tmp_path: Path) -> None:
    x = torch.randn(1, 4).expand(3, 4)
    mlcc.export(_module(lambda self, x: x * 2), (x,), tmp_path / "m.mlcc")
    y = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    assert numpy.array_equal(mlcc.runtime.load(tmp_path / "m.mlcc")(y), y * 2)
    z = torch.randn(2, 5)
    mlcc.export(_module(lambda self, a, b: a - b), (z, z), tmp_path / "n.mlcc")
    assert torch.equal(mlcc.load(tmp_path / "n.mlcc")(z, z + 1), z - (z + 1))


def test_a_field_of_a_record_is_copied(tmp_path: Path) -> None:
    mlcc.export(nn.ReLU().eval(), (torch.ones(4),), tmp_path / "m.mlcc")
    records = numpy.zeros(4, [("a", "f4"), ("b", "u1")])
    records["a"] = [1, -2, 3, 4]
    assert mlcc.runtime.load(tmp_path / "m.mlcc")(records["a"]).tolist() == [1, 0, 3, 4]


def test_weights_that_are_negated_when_read(tmp_path: Path) -> None:
    model = _module(lambda self, x: x * self.w, w=torch._neg_view(torch.ones(3)))
    mlcc.export(model, (torch.ones(3),), tmp_path / "m.mlcc")
    assert mlcc.load(tmp_path / "m.mlcc")(torch.ones(3)).tolist() == [-1, -1, -1]


def test_arguments_that_are_no_tensors(tmp_path: Path) -> None:
    model = _module(lambda self, x, y=None, z=2: x * z if y is None else x + y)
    mlcc.export(model, (torch.ones(3), None, 4), tmp_path / "m.mlcc")
    package = mlcc.load(tmp_path / "m.mlcc")
    assert package(torch.ones(3), None, 4).tolist() == [4, 4, 4]
    with pytest.raises(TypeError, match="found 5, exported with 4"):
        package(torch.ones(3), None, 5)
    with pytest.raises(mlcc.Error, match="expected a tuple"):
        mlcc.export(model, torch.ones(3), tmp_path / "n.mlcc")
    with pytest.raises(mlcc.Error, match="key of an argument or result is 1, expected text"):
        mlcc.export(_module(lambda self, x: {1: x * 2}), (torch.ones(3),), tmp_path / "n.mlcc")


def test_a_forked_process_ends(tmp_path: Path) -> None:
    mlcc.export(nn.Linear(64, 64).eval(), (torch.ones(64, 64),), tmp_path / "m.mlcc", threads=2)
    program = (
        "import os, sys, numpy, mlcc.runtime\n"
        "package = mlcc.runtime.load('m.mlcc', threads=2)\n"
        "x = numpy.ones((64, 64), numpy.float32)\n"
        "y = package(x)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert (package(x) == y).all()\n"
        "    del package\n"
        "    sys.exit(0)\n"
        "assert os.waitpid(child, 0)[1] == 0\n"
    )
    _run_python(program, tmp_path)


# -- what cannot be exported


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (lambda: nn.Conv2d(3, 8, 3, padding=1, padding_mode="reflect"), (2, 3, 9, 8)),
        (lambda: nn.ReflectionPad2d((1, 2, 3, 0)), (2, 3, 9, 8)),
        (lambda: nn.ReplicationPad2d(2), (3, 9, 8)),
        (lambda: nn.ReplicationPad3d(1), (1, 2, 4, 5, 6)),
        (lambda: nn.ReflectionPad3d(1), (1, 2, 4, 5, 6)),
    ],
)
def test_images_that_go_on_beyond_their_ends(
    layer: Any, shape: tuple[int, ...], tmp_path: Path
) -> None:
    module, x = layer().eval(), torch.randn(shape)
    mlcc.export(module, (x,), tmp_path / "m.mlcc")
    with torch.no_grad():
        check_all(mlcc.load(tmp_path / "m.mlcc")(x), module(x), in_double(module, x))


class Writes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return x + self.count


class Solves(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x) + torch.linalg.eigvalsh(x)


def test_models_that_cannot_be_exported(tmp_path: Path) -> None:
    path = tmp_path / "m.mlcc"
    x = torch.randn(4, 4)
    with pytest.raises(mlcc.Error, match=r"training mode\n.*model.eval\(\)"):
        mlcc.export(nn.Dropout(), (x,), path)
    with pytest.raises(mlcc.Error, match=r"writes into count\n.*remedy"):
        mlcc.export(Writes().eval(), (x,), path)
    with pytest.raises(mlcc.Error) as error:
        mlcc.export(Solves().eval(), (x,), path)
    # All ops, with the line in which they stand.
    for name in ("linalg_inv", "linalg_eigh"):
        assert name in str(error.value)
    assert "test_export.py:" in str(error.value)
    with pytest.raises(mlcc.Error, match="expected a module"):
        mlcc.export(torch.relu, (x,), path)
    with pytest.raises(mlcc.Error, match="nosuchcpu"):
        mlcc.export(nn.ReLU().eval(), (x,), path, target="nosuchcpu")
    assert not list(tmp_path.iterdir())


def test_a_wrong_package_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check sees a weight that differs, and what ends its process."""
    core = load_core()
    write = core.write_package

    class Falsifier:
        def __init__(self, change: Any) -> None:
            self.change = change

        def __getattr__(self, name: str) -> Any:
            return getattr(core, name)

        def write_package(self, executable: Any, path: str, *rest: Any) -> Any:
            facts = write(executable, path, *rest)
            self.change(Path(path), rest)
            return facts

    def negate_weight(path: Path, rest: Any) -> None:
        inputs = [-value if value is not None and value.ndim == 2 else value for value in rest[1]]
        write(executables[0], os.fspath(path), rest[0], inputs, *rest[2:])

    executables: list[Any] = []
    compile_it = core.compile

    def remember(*args: Any, **kwargs: Any) -> Any:
        executables.append(compile_it(*args, **kwargs))
        return executables[-1]

    falsifier = Falsifier(negate_weight)
    falsifier.compile = remember  # type: ignore[attr-defined]
    monkeypatch.setattr("mlcc.packages.export.load_core", lambda: falsifier)
    model = nn.Linear(8, 8).eval()
    with pytest.raises(mlcc.Error, match="result 0 is wrong"):
        mlcc.export(model, (torch.randn(3, 8),), tmp_path / "m.mlcc")
    assert not list(tmp_path.iterdir())


def test_check_compares(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ep = torch.export.export(nn.ReLU().eval(), (torch.ones(3),), strict=False)
    results = {"value": torch.ones(3)}
    monkeypatch.setattr(checks, "_run", lambda *_: [results["value"]])

    def check() -> float:
        return checks.check(tmp_path, ep, ep, (torch.ones(3),), {}, {}, {"tuple": [{"tensor": 0}]})

    assert check() == 0
    results["value"] = torch.tensor([1, 1, 1.0001])
    assert 0 < check() < 1e-3
    for wrong in (
        torch.tensor([1, 1, 1.1]),
        torch.tensor([1, 1, float("nan")]),
        torch.ones(2),
        torch.ones(3).double(),
    ):
        results["value"] = wrong
        with pytest.raises(mlcc.Error, match="result 0"):
            check()


# -- the file


def _exported(tmp_path: Path, **options: Any) -> Path:
    model, args, _ = _models()["convolutions"]
    mlcc.export(model.eval(), args, tmp_path / "m.mlcc", check=False, **options)
    return tmp_path / "m.mlcc"


def test_two_exports_are_equal(tmp_path: Path) -> None:
    first = _exported(tmp_path, target="x86-64-v3").read_bytes()
    mlcc.clear_cache()
    (tmp_path / "m.mlcc").unlink()
    with mlcc.config.patch(num_compile_threads=1):
        assert _exported(tmp_path, target="x86-64-v3").read_bytes() == first


def test_a_target_by_name(tmp_path: Path) -> None:
    path = _exported(tmp_path, target="x86-64")
    assert mlcc.load(path).manifest["target"]["cpu"] == "x86-64"
    model, args, _ = _models()["convolutions"]
    with torch.no_grad():
        check_all(mlcc.load(path)(*args), model.eval()(*args), in_double(model, *args))


def test_the_manifest_is_json(tmp_path: Path) -> None:
    manifest = mlcc.load(_exported(tmp_path)).manifest
    assert manifest["mlcc"] == mlcc.__version__ and manifest["kernels"]
    assert manifest == json.loads(json.dumps(manifest))


def _changed(path: Path, place: int, byte: int) -> Path:
    contents = bytearray(path.read_bytes())
    contents[place] = byte
    other = path.with_name("changed.mlcc")
    other.write_bytes(contents)
    return other


def test_damaged_files(tmp_path: Path) -> None:
    path = _exported(tmp_path)
    contents = path.read_bytes()
    for size in (0, 7, 40, 100, 4096, len(contents) - 1):
        (tmp_path / "short.mlcc").write_bytes(contents[:size])
        with pytest.raises(PackageError):
            mlcc.load(tmp_path / "short.mlcc")
    with pytest.raises(PackageError, match="no package of mlcc"):
        mlcc.load(_changed(path, 0, 0))
    with pytest.raises(PackageError, match=r"found format 2.0, expected 1.0 to 1.0"):
        mlcc.load(_changed(path, 8, 2))
    with pytest.raises(PackageError, match="table of sections is damaged"):
        mlcc.load(_changed(path, 60, 255))
    middle = contents.index(b'"kernels"')
    with pytest.raises(PackageError, match="section 1 is damaged"):
        mlcc.load(_changed(path, middle, 0))
    last = _changed(path, len(contents) - 40, contents[-40] ^ 1)  # a weight
    mlcc.load(last)
    with pytest.raises(PackageError, match="section 4 is damaged"):
        mlcc.load(last, check_weights=True)
    with pytest.raises(PackageError, match="No such file"):
        mlcc.load(tmp_path / "none.mlcc")
    with pytest.raises(PackageError):
        mlcc.load(tmp_path)


def test_results_in_double_of_what_is_computed_in_float(tmp_path: Path) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(nn.Linear(64, 64), nn.Softmax(-1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x).double()

    told = mlcc.export(Model().eval(), (torch.randn(5, 64),), tmp_path / "m.mlcc")
    assert told.largest_error is not None
    assert told.largest_error < 1e-5


class SlowerThanEager(torch.nn.Module):
    """Ops that `torch.compile` leaves to eager's kernels, which are faster."""

    def forward(self, x: torch.Tensor) -> Any:
        stepped = torch.slice_scatter(x, x[:, :3] * 2, 1, 1, 7, 2)
        images = x.unflatten(1, (2, 9)).unsqueeze(1)
        pooled = torch.nn.functional.adaptive_avg_pool2d(images, (2, 4))
        return torch.roll(x, (1, 2), (0, 1)), stepped, pooled


def test_rules_of_speed_are_for_those_who_have_eager(tmp_path: Path) -> None:
    model, sizes = SlowerThanEager().eval(), ({0: Dim("n", min=1, max=9)},)
    mlcc.export(model, (torch.randn(4, 18),), tmp_path / "m.mlcc", dynamic_shapes=sizes)
    package = mlcc.load(tmp_path / "m.mlcc")
    for n in (1, 4, 9):
        x = torch.randn(n, 18)
        check_all(list(package(x)), list(model(x)), list(model(x.double())))
