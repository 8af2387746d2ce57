"""Training steps, optimizer included: mlcc beside eager and Inductor.

usage: training_steps.py [--filter REGEX] [--sizes BxS[xW][,...]] [--threads N] [--dtype f32|autocast]
                         [--optimizer sgd|adamw] [--peers NAME[,NAME...]] [--seconds 8] [--minutes M] [--clock wall|cpu]
                         [--json FILE] [--fresh]

A step is what a training loop runs: gradients are forgotten, the loss is a cross entropy (under `--dtype autocast` in
bfloat16 autocast), its gradients, a step of the optimizer. The compilers get the loss and the optimizer's step, each
by torch.compile. Sizes are batch x length (or side, or features) x width. Contenders train copies of one model and take
turns (benchmarks/harness.py); before that losses and gradients of two steps are compared with eager's.

Records are appended to build/training-steps.jsonl, so a run that was stopped goes on; --minutes begins no row after so
long. Rebuilt code starts afresh.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from benchmarks import harness  # noqa: E402
from benchmarks.apart import Record, judge, measured_rows, tell  # noqa: E402
from benchmarks.contraction_nets import HEAD, NETS  # noqa: E402
from benchmarks.suite import CLOCKS, environment  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.store import Store  # noqa: E402

PEERS = ("inductor",)
CLASSES = 10
# By how much losses and gradients may part from eager's, relative to the largest number; or four times what an input
# that is off by an epsilon makes of eager's, or by how much eager's in f32 part from those in f64: gradients of batch
# norms and kinks jump.
TOLERANCE = {"f32": 1e-3, "autocast": 3e-2}
MIN_ROUNDS = 5


class Row(NamedTuple):
    """What is measured in one process."""

    net: str
    size: str
    dtype: str
    optimizer: str
    threads: int
    clock: str
    against: tuple[str, ...]

    @property
    def title(self) -> str:
        """For people."""
        return f"{self.net:12} {self.size:11} {self.dtype:8} {self.optimizer:5} {self.threads}"


# -- what is trained


class Classes(nn.Module):
    """Whatever a network gives for its tokens, as classes of each."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body = body
        self.head = nn.Linear(width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] to [.., classes]."""
        classes: Tensor = self.head(self.body(x))
        return classes


def _mlp(batch: int, size: int, width: int) -> tuple[nn.Module, Tensor]:
    layers = [nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return Classes(nn.Sequential(*layers), width), torch.randn(batch, size)


def _transformer(batch: int, size: int, width: int) -> tuple[nn.Module, Tensor]:
    layer = nn.TransformerEncoderLayer(
        width, width // HEAD, 4 * width, dropout=0.0, activation="gelu", batch_first=True
    )
    body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return Classes(body, width), torch.randn(batch, size, width)


def _convolutional(name: str) -> Callable[[int, int, int], tuple[nn.Module, Tensor]]:
    def make(batch: int, size: int, width: int) -> tuple[nn.Module, Tensor]:
        net = NETS[name].build(batch, size, width)
        return net.module, net.inputs[0]

    return make


class Kind(NamedTuple):
    """How a model and its input are made, and the sizes where nothing else is asked for."""

    make: Callable[[int, int, int], tuple[nn.Module, Tensor]]
    width: int
    sizes: tuple[str, ...]


KINDS = {
    "mlp": Kind(_mlp, 1024, ("64x784", "512x784")),
    "transformer": Kind(_transformer, 768, ("4x128", "2x512")),
    "resnet18": Kind(_convolutional("resnet18"), 64, ("4x112",)),
    "unet": Kind(_convolutional("unet"), 32, ("2x128",)),
}
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 1e-4),
}


class Training:
    """A contender's copy of the model, and its step."""

    def __init__(self, name: str, row: Row, module: nn.Module, x: Tensor) -> None:
        self.module = copy.deepcopy(module).train()
        self._optimizer = OPTIMIZERS[row.optimizer](self.module.parameters())
        self._is_autocast = row.dtype == "autocast"
        self._x = x
        with torch.no_grad():
            shape = self._scores().shape
        generator = torch.Generator().manual_seed(1)
        # Classes lie along the second dimension of an image, along the last one elsewhere.
        self._dim = 1 if len(shape) == 4 else -1
        kept = [size for dim, size in enumerate(shape) if dim != self._dim % len(shape)]
        self._target = torch.randint(0, shape[self._dim], kept, generator=generator)
        self._loss: Callable[[], Tensor] = self._compute_loss
        self._update: Callable[[], object] = self._optimizer.step
        if name != "eager":
            self._loss = torch.compile(self._compute_loss, backend=name, dynamic=False)
            self._update = torch.compile(self._optimizer.step, backend=name, dynamic=False)

    def _scores(self) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=self._is_autocast):
            scores: Tensor = self.module(self._x)
        return scores

    def _compute_loss(self) -> Tensor:
        scores = self._scores().movedim(self._dim, -1).flatten(0, -2)
        return functional.cross_entropy(scores.float(), self._target.flatten())

    def step(self) -> Tensor:
        """The loss before the step."""
        self._optimizer.zero_grad()
        loss = self._loss()
        loss.backward()
        self._update()
        return loss.detach()


def error_of(own: Training, eager: Training) -> float:
    """The largest difference of losses and gradients of two steps, relative to the largest number of their kind.

    Parameters are not compared: of a gradient that is nothing but rounding AdamW makes a whole step.
    """
    error = 0.0
    for _ in range(2):
        losses = [one.step() for one in (own, eager)]
        grads = [[p.grad for p in one.module.parameters()] for one in (own, eager)]
        scale = max(float(grad.abs().max()) for grad in grads[1])
        pairs = [(losses[0], losses[1], float(losses[1].abs()))]
        pairs += [(a, b, scale) for a, b in zip(*grads, strict=True)]
        error = max(error, *(float((a - b).abs().max()) / size for a, b, size in pairs))
    return error


def measure(row: Row, seconds: float) -> Record:
    """Prepare, check and time what a row asks for."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(row.threads)
    kind = KINDS[row.net]
    batch, size, *width = map(int, row.size.split("x"))
    torch.manual_seed(0)
    module, x = kind.make(batch, size, *(width or [kind.width]))
    ready: dict[str, Callable[[], object]] = {}
    compile_seconds: dict[str, float] = {}
    reasons: dict[str, str] = {}
    computed_in = torch.bfloat16 if row.dtype == "autocast" else x.dtype
    nearby = x * (1 + torch.finfo(computed_in).eps * torch.randint(-1, 2, x.shape))
    noise = error_of(*(Training("eager", row, module, one) for one in (nearby, x)))
    if row.dtype == "f32":
        exact = Training("eager", row, copy.deepcopy(module).double(), x.double())
        noise = max(noise, error_of(Training("eager", row, module, x), exact))
    for name in row.against:
        torch._dynamo.reset()
        own = Training(name, row, module, x)
        start = time.perf_counter()
        error = error_of(own, Training("eager", row, module, x))
        compile_seconds[name] = round(time.perf_counter() - start, 3)
        if not error <= max(TOLERANCE[row.dtype], 4 * noise):
            reasons[name] = f"WRONG: off by {error:.2g}"
            continue
        ready[name] = own.step
    timed = harness.compare(ready, seconds=seconds, min_rounds=MIN_ROUNDS, clock=CLOCKS[row.clock])
    return {
        "seconds": dict(zip(timed.seconds, timed.low_seconds, strict=True)),
        "ratio": {name: timed.ratio(name).median for name in ready},
        "rounds": timed.rounds,
        "compile_seconds": compile_seconds,
        "reasons": reasons,
    }


# -- rows and report


def main() -> int:
    """Measure what is missing, then print what it amounts to; the exit status is 1 if a result was wrong."""
    arguments = _parse_arguments()
    if arguments.rows:
        row = Row(*json.loads(arguments.rows)[0])
        tell([measure(row._replace(against=tuple(row.against)), arguments.seconds)])
        return 0
    store = Store(ROOT / "build" / "training-steps.jsonl", arguments.fresh)
    options = ["--seconds", str(arguments.seconds)]
    measured: list[tuple[Row, Record]] = []
    found = measured_rows(
        __file__,
        _rows(arguments),
        store,
        options,
        lambda row: environment(row.threads, "default"),
        arguments.minutes,
        _is_final,
    )
    for row, record in found:
        print(format_row(row, record), flush=True)
        measured.append((row, record))
    if arguments.json:
        table = [{**row._asdict(), **record} for row, record in measured]
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")
    ratios = [record["ratio"] for _, record in measured if "mlcc" in record.get("ratio", {})]
    judge("times as fast as eager", [one["mlcc"] for one in ratios], mean=1.2, least=1.0)
    over_best = [one["mlcc"] / max(one[name] for name in one if name != "mlcc") for one in ratios]
    judge("times as fast as the best of the others", over_best, least=1.0)
    faults = [reason for _, record in measured for reason in record["reasons"].values()]
    return int(any(reason.startswith("WRONG") for reason in faults))


def _is_final(row: Row, record: Record) -> bool:
    del row
    return bool(record["seconds"])


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--filter", type=re.compile, default=re.compile(""), help="of names")
    parser.add_argument("--sizes", type=lambda text: text.split(","), metavar="BxS[xW],...")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--dtype", choices=tuple(TOLERANCE), help="default: both")
    parser.add_argument("--optimizer", choices=tuple(OPTIMIZERS), default="adamw")
    parser.add_argument("--peers", type=names_among(PEERS), default=list(PEERS))
    parser.add_argument("--seconds", type=float, default=8.0, help="for each row")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row after")
    parser.add_argument("--clock", choices=tuple(CLOCKS), default="wall")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table there too")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results")
    parser.add_argument("--rows", help=argparse.SUPPRESS)
    return parser.parse_args()


def _rows(arguments: argparse.Namespace) -> Iterator[Row]:
    for dtype in [arguments.dtype] if arguments.dtype else TOLERANCE:
        rest = (dtype, arguments.optimizer, arguments.threads, arguments.clock)
        for name, kind in KINDS.items():
            if arguments.filter.search(name):
                for size in arguments.sizes or kind.sizes:
                    yield Row(name, size, *rest, against=("eager", "mlcc", *arguments.peers))


def format_row(row: Row, record: Record) -> str:
    """A line of the table; in parentheses the speed over eager."""
    texts = [row.title]
    for name in row.against:
        if name in record["seconds"]:
            texts.append(
                f"{name} {record['seconds'][name] * 1e3:.3f} ms ({record['ratio'][name]:.2f}x)"
            )
        elif name in record["reasons"]:
            texts.append(f"{name}: {record['reasons'][name]}")
    return "  ".join([*texts, *filter(None, [record["reasons"].get("process")])])


if __name__ == "__main__":
    sys.exit(main())
