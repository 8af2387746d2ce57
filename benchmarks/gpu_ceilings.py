"""What a device reaches at best: bandwidth, matrix products, launches. usage: gpu_ceilings.py [--rewrite-model]

--rewrite-model writes what was measured to csrc/schedule/machines/<architecture>.def. On an emulated GPU, only the
answers of the kernels are looked at.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from benchmarks.gpu_timing import DEVICE, EMULATED, record, time_calls  # noqa: E402

MACHINES = ROOT / "csrc" / "schedule" / "machines"
# Of one buffer, far beyond any L2 cache.
BYTES = 1 << 16 if EMULATED else 1 << 30
MATRIX = 8192


def ceiling(name: str, value: float, unit: str) -> float:
    """Record one figure."""
    record(step="ceilings", kind="ceiling", name=name, value=value, unit=unit)
    return value


def bandwidths() -> float:
    """GB/s of copies, reads and writes, by torch and by our kernels; the best copy."""
    import mlcc

    count = BYTES // 4
    x = torch.randn(count, device=DEVICE)
    y = torch.empty_like(x)
    with torch.no_grad():
        negate, total = mlcc.jit(lambda x: -x), mlcc.jit(lambda x: x.sum())
        fill = mlcc.jit(lambda y: y.fill_(3.0))
        assert torch.equal(negate(x), -x), "our copy is wrong"
        error = (total(x).double() - x.double().sum()).abs().item()
        assert error < 1e-3 * count**0.5, f"our sum is off by {error}"
        fill(y)
        assert y.eq(3).all(), "our fill is wrong"
        if EMULATED:
            return 0.0
        functions: dict[str, tuple[Callable[[int], object], int]] = {
            "copy, torch": (lambda _: y.copy_(x), 2),
            "copy, mlcc (negation)": (lambda _: negate(x), 2),
            "read, torch (sum)": (lambda _: x.sum(), 1),
            "read, mlcc (sum)": (lambda _: total(x), 1),
            "write, torch (fill)": (lambda _: y.fill_(2.0), 1),
            "write, mlcc (fill)": (lambda _: fill(y), 1),
        }
        timed = time_calls({name: function for name, (function, _) in functions.items()}, 1)
    speeds = {
        name: ceiling(name, passes * BYTES / timed[name].us / 1e3, "GB/s")
        for name, (_, passes) in functions.items()
    }
    return ceiling("copy, best", max(v for k, v in speeds.items() if k.startswith("copy")), "GB/s")


def matrix_product() -> None:
    """TFLOP/s in bf16, on random numbers: zeros run faster."""
    a, b = (torch.randn(MATRIX, MATRIX, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    timed = time_calls({"mm": lambda _: a @ b}, 1)["mm"]
    ceiling("bf16 product 8192^3, torch", 2 * MATRIX**3 / timed.us / 1e6, "TFLOP/s")


def launches() -> None:
    """What a call of a tiny kernel costs: the host that queues it, the device, and both until the result is there."""
    import mlcc

    x = torch.ones(256, device=DEVICE)
    add = mlcc.jit(lambda x: x + 1)
    compiled = torch.compile(lambda x: x + 1, backend="mlcc")
    functions: dict[str, Callable[[int], object]] = {
        "eager": lambda _: x + 1,
        "mlcc.jit": lambda _: add(x),
        "torch.compile by mlcc": lambda _: compiled(x),
    }
    with torch.no_grad():
        for name, timed in time_calls(functions, 1).items():
            ceiling(f"add of 256 numbers, device, {name}", timed.us, "us")
            ceiling(f"add of 256 numbers, host, {name}", timed.host_us, "us")
        for name, function in functions.items():
            start = time.perf_counter()
            for _ in range(200):
                function(0)
                torch.cuda.synchronize()
            ceiling(f"add and wait, {name}", (time.perf_counter() - start) / 200 * 1e6, "us")


def rewritten(text: str, source: str, numbers: dict[str, int]) -> str:
    """The text of a machine's model with other numbers and their source; rows that are not given stay."""
    for field, value in numbers.items():
        text, found = re.subn(rf"MACHINE\({field}, \d+\)", f"MACHINE({field}, {value})", text)
        if found != 1:
            raise ValueError(f"the model has {found} rows {field}")
    return re.sub(r"\A(?://[^\n]*\n)*", f"// {source}\n", text)


def rewrite_model(copy_gb_per_s: float) -> None:
    """csrc/schedule/machines/<architecture>.def from this device."""
    p = torch.cuda.get_device_properties(0)
    path = MACHINES / f"sm_{p.major}{p.minor}.def"
    if not path.exists():
        print(f"there is no {path.name}: the model stays that of an older architecture")
        return
    numbers = {
        "multiprocessors": p.multi_processor_count,
        "threads_per_multiprocessor": p.max_threads_per_multi_processor,
        "registers_per_multiprocessor": p.regs_per_multiprocessor,
        "shared_bytes_per_block": p.shared_memory_per_block_optin,
        "memory_gb_per_s": round(copy_gb_per_s),
    }
    source = (
        f"{p.name}, measured {time.strftime('%Y-%m-%d')} by benchmarks/gpu_ceilings.py"
        " (the bandwidth is a copy's); the latencies are others'."
    )
    path.write_text(rewritten(path.read_text(), source, numbers))
    record(step="ceilings", kind="fact", name="rewritten model", value=path.name)


def main() -> None:
    """Everything, the most needed first."""
    parser = argparse.ArgumentParser(description="what a device reaches at best")
    parser.add_argument("--rewrite-model", action="store_true")
    arguments = parser.parse_args()
    copy = bandwidths()
    if EMULATED:
        return
    if arguments.rewrite_model:
        rewrite_model(copy)
    launches()
    matrix_product()


if __name__ == "__main__":
    main()
