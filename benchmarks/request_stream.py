"""A server's requests of random lengths and batches, the first included: latencies beside eager and TorchInductor.

usage: python benchmarks/request_stream.py [--requests N] [--backends eager,mlcc.jit,mlcc,inductor] [--rounds N]
                                           [--small]

Each figure is a fresh process on empty caches that answers the same requests. `p99` is over all of them; `stalls` are
calls that took more than 50 ms over the median of three later ones of the same size. torch.compile is told by
`mark_dynamic` which sizes change, as the docs of each backend ask for; `mlcc.jit` is told nothing. `compiles` are what
Dynamo, or mlcc.jit, traced.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.fresh_process import record_of  # noqa: E402 (behind the path)

_STALL = 0.05  # seconds over the median of a size
_LONGEST, _LARGEST = 512, 16  # length and batch


def _requests(count: int) -> list[tuple[int, int]]:
    drawn = random.Random(0)
    return [(drawn.randint(1, _LARGEST), drawn.randint(1, _LONGEST)) for _ in range(count)]


def _model(small: bool) -> Any:
    import transformers

    transformers.utils.logging.set_verbosity_error()
    layers, width = (1, 64) if small else (4, 256)
    config = transformers.BertConfig(
        vocab_size=4096,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=width // 32,
        intermediate_size=4 * width,
        max_position_embeddings=_LONGEST,
    )
    return transformers.BertModel(config).eval()


def _compiled(net: Any, backend: str) -> tuple[Callable[[Any], Any], Callable[[], int]]:
    """The function of ids, and how many graphs were traced so far."""
    import torch

    if backend == "eager":
        return net, lambda: 0
    if backend == "mlcc.jit":
        import mlcc
        from mlcc.capture import backend as backend_module

        jitted = mlcc.jit(net)
        return jitted, lambda: backend_module.timings().graphs
    compiled = torch.compile(net, backend=backend)

    def call(ids: Any) -> Any:
        for dim in range(2):
            torch._dynamo.mark_dynamic(ids, dim)
        return compiled(ids)

    return call, lambda: int(torch._dynamo.utils.counters["stats"]["unique_graphs"])


def _child(backend: str, count: int, small: bool) -> None:
    import torch

    import mlcc.capture.backend  # noqa: F401 (imports are set aside)

    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    torch.set_num_threads(1)
    net = _model(small)
    sizes = _requests(count)
    inputs = {size: torch.randint(0, 4096, size) for size in sizes}
    net(torch.zeros(1, 8, dtype=torch.int64))
    run, graphs = _compiled(net, backend)

    def timed(size: tuple[int, int]) -> float:
        start = time.perf_counter()
        run(inputs[size])
        return time.perf_counter() - start

    seconds = [timed(size) for size in sizes]
    compiles = graphs()
    usual = {size: statistics.median(timed(size) for _ in range(3)) for size in set(sizes)}
    stalls = [
        took for took, size in zip(seconds, sizes, strict=True) if took > usual[size] + _STALL
    ]
    record = {"seconds": seconds, "compiles": compiles, "stalls": stalls}
    print(json.dumps(record))


def _measure(backend: str, count: int, small: bool) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="mlcc-stream-") as folder:
        arguments = [backend, str(count), str(int(small))]
        record: dict[str, Any] = record_of(__file__, arguments, folder, None)
        return record


def main() -> None:
    """Print the table."""
    if sys.argv[1:2] == ["--child"]:
        backend, count, small = sys.argv[2:]
        _child(backend, int(count), small == "1")
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--backends", default="eager,mlcc.jit,mlcc,inductor")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--small", action="store_true", help="a model of one layer")
    given = parser.parse_args()
    best: dict[str, dict[str, Any]] = {}
    for _ in range(given.rounds):
        for backend in given.backends.split(","):
            record = _measure(backend, given.requests, given.small)
            if backend not in best or sum(record["seconds"]) < sum(best[backend]["seconds"]):
                best[backend] = record
    print(
        f"{'':10s} {'total':>7s} {'p50 ms':>7s} {'p99 ms':>7s} {'first':>6s} compiles  stalls after the first"
    )
    for backend, record in best.items():
        seconds = record["seconds"]
        cuts = statistics.quantiles(seconds, n=100)
        later = [took for took in record["stalls"] if took != seconds[0]]
        words = ", ".join(f"{took:.2f}" for took in later[:8])
        print(
            f"{backend:10s} {sum(seconds):7.2f} {cuts[49] * 1e3:7.1f} {cuts[98] * 1e3:7.1f} {seconds[0]:6.2f} "
            f"{record['compiles']:8d}  {len(later)}{': ' + words if later else ''}"
        )


if __name__ == "__main__":
    main()
