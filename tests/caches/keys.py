"""Whether the keys of kernels tell apart all that makes their code differ: the same programs under other settings.

Under one key stands one object, whatever process wrote it. An option of class `code` changes all keys, an option of
class `run` but for the number of threads none, and two processes that compile the same write the same files.
"""

from __future__ import annotations

import functools
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

import mlcc  # noqa: E402
from mlcc import config  # noqa: E402
from tests.caches.folders import At, Cases, empty_folder, variables  # noqa: E402
from tests.fuzz.modes import draw  # noqa: E402
from tests.fuzz.program_run import Subject, run_program  # noqa: E402
from tests.pool import Record  # noqa: E402

PROGRAMS = 4  # random ones, of each process
SETTINGS = 8  # of each seed

# Values of the options of class `code`, beside the default.
CODE = {
    "stream_mb": ["0", "1"],
    "pack_weights": ["0"],
    "cpu": ["haswell", "skylake-avx512", "x86-64"],
    "gpu": ["off"],
    "cuda_arch": ["sm_80"],
    "prefer": ["code", "call"],
    "contractions": ["0"],
    "library": ["0"],
    "activations": ["int8"],
    "matmul_precision": ["high", "medium"],  # torch's own is highest
    "join_products": ["0"],
    "winograd": ["0"],
    "fallback_random": ["1"],
    "bisect": ["0", "5"],
}
# Of class `run`. Others name folders and libraries, turn caches off, or the compiler.
RUN = {
    "logs": ["+all"],
    "dump": ["loop,llvm"],
    "verify": ["first", "always"],
    "repro_data": ["1"],
    "cache_size_mb": ["64"],
    "idle_memory_mb": ["0"],
    "pack_mb": ["0", "1"],
    "weights": ["steal"],
    "num_threads": ["1", "2", "5"],
    "num_compile_threads": ["1", "3"],
}
NOT_VARIED = {
    *("dump_dir", "cache_dir", "torch_caches", "warm_start"),
    *("disable", "strict", "libcuda", "nvrtc", "measure", "tier"),
}
# Their texts differ with it; or what is compiled does.
CHANGES_KERNELS = {"num_threads", "weights", "verify"}


class Setting(NamedTuple):
    """What a process is started with: an option and its value, or none."""

    option: str = ""
    value: str = ""


def all_settings() -> list[Setting]:
    """Every value of every option that is varied."""
    return [Setting(name, value) for name, values in {**CODE, **RUN}.items() for value in values]


def run(rng: random.Random, count: int, cases: Cases, at: At) -> Record:
    """`count` sets of random programs, each with some settings."""
    del cases
    faults: list[str] = []
    objects = 0
    for turn in range(count):
        first = rng.randrange(1 << 30)
        some = rng.sample(all_settings(), SETTINGS)
        found = compare(first, some, rng, lambda: at(f"set {turn}"))
        faults += [f"programs from {first} on: {fault}" for fault in found.faults]
        objects += found.objects
    return {"faults": faults, "done": objects}


class Found(NamedTuple):
    """What is wrong, and how many objects were compared with others."""

    faults: list[str]
    objects: int


def compare(
    first: int,
    settings: list[Setting],
    rng: random.Random,
    lives: Callable[[], None],
    programs: int = PROGRAMS,
) -> Found:
    """The programs of some seeds with the defaults, again, and with each of these settings."""
    seeds = range(first, first + programs)
    plain = objects_of(seeds, Setting(), rng)
    lives()
    again = objects_of(seeds, Setting(), rng)
    faults = [] if plain else ["nothing was stored"]
    if plain != again:
        faults.append(f"compiled again: {differences(plain, again)}")
    objects = len(plain)
    known = dict(plain)  # of all settings so far
    for setting in settings:
        lives()
        found = objects_of(seeds, setting, rng)
        objects += len(found)
        if other := [name for name in found if found[name] != known.setdefault(name, found[name])]:
            faults.append(f"{setting}: {len(other)} keys have other objects: {other[0]}")
        faults += [f"{setting}: {fault}" for fault in of_setting(setting, {*plain}, {*found})]
    return Found(faults, objects)


def of_setting(setting: Setting, plain: set[str], found: set[str]) -> list[str]:
    """What is wrong with the keys under a setting, beside those of the defaults."""
    faults = []
    if setting.option in CODE and plain & found:
        faults.append(f"{len(plain & found)} keys are the same")
    if setting.option in {*RUN} - CHANGES_KERNELS and plain != found:
        faults.append(f"{len(plain ^ found)} keys are only in one")
    return faults


def differences(first: dict[str, bytes], second: dict[str, bytes]) -> str:
    """Of two sets of objects that should be the same."""
    alone = first.keys() ^ second.keys()
    other = [name for name in first.keys() & second.keys() if first[name] != second[name]]
    return f"{len(alone)} keys are only in one, {len(other)} objects differ: {[*alone, *other][:3]}"


def objects_of(seeds: range, setting: Setting, rng: random.Random) -> dict[str, bytes]:
    """What a process with an empty store puts there, by name. Hash seed and threads of torch are drawn."""
    with empty_folder() as folder:
        drawn = {
            "PYTHONHASHSEED": str(rng.randrange(1000)),
            "OMP_NUM_THREADS": rng.choice("123"),
            "MLCC_NUM_THREADS": "3",
            "MLCC_WARM_START": "0",
            "MLCC_TORCH_CACHES": "0",
            "MLCC_DUMP_DIR": str(folder / "dump"),
        }
        if setting.option:
            drawn[config.table()[setting.option].env] = setting.value
        done = subprocess.run(
            [sys.executable, __file__, *map(str, seeds)],
            env={**variables(folder), **drawn},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{setting}: {done.stderr[-3000:]}")
        files = (folder / "mlcc" / "store").glob("*-*")
        return {path.name: path.read_bytes() for path in files if path.name[:4] != "tmp-"}


# -- the process that compiles


def _contractions() -> None:
    """Kernels that random programs seldom have: products, an image, attention, rows, a training step."""
    torch.manual_seed(0)
    x, image = torch.randn(64, 96), torch.randn(2, 8, 12, 12)
    first, second = torch.nn.Linear(96, 48).eval(), torch.nn.Linear(96, 48).eval()
    filters = torch.nn.Conv2d(8, 16, 3, padding=1).eval()
    with torch.no_grad():
        _compiled(lambda x: torch.nn.functional.silu(first(x)) * second(x))(x)
        _compiled(lambda x: filters(x).relu())(image)
        heads = x.view(2, 32, 4, 24).transpose(1, 2)
        mlcc.jit(torch.nn.functional.scaled_dot_product_attention)(heads, heads, heads)
        mlcc.jit(lambda x: torch.layer_norm(x, [96]).bfloat16().softmax(-1))(x)
        mlcc.jit(lambda x: x + 1)(torch.zeros(300_000))
        mlcc.jit(torch.nn.functional.dropout)(x)
    trained = torch.nn.Sequential(torch.nn.Linear(96, 16), torch.nn.GELU())
    _compiled(lambda x: trained(x).square().mean())(x).backward()


def _compile(seeds: Sequence[int]) -> None:
    _contractions()
    for seed in seeds:
        program = draw("programs" if seed % 2 else "states", seed)
        torch.manual_seed(0)
        torch._dynamo.reset()
        try:
            made = mlcc.jit if program.entry == "jit" else _compiled
            wrap = functools.partial(made, dynamic=program.dynamic)
            run_program(program, Subject.of(program, wrap))
        except Exception as error:  # what eager refuses, and programs that settings make eager
            print(f"{type(error).__name__}: {error}", file=sys.stderr)


def _compiled(target: Any, **settings: Any) -> Any:
    return torch.compile(target, backend="mlcc", **settings)


if __name__ == "__main__":
    _compile([int(seed) for seed in sys.argv[1:]])
