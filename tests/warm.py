"""Cold and warm: the same work again on the caches of the first time is the same bit for bit.

A worker measures its work by a `Warmth` and answers with it. `twice` has the same tasks done by new processes, on the
same folders of caches; `Warmth.difference` tells what was not the same.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

import torch
from torch._dynamo.utils import counters

from tests.pool import Lost, Pool, Record, T

BATCH = 100  # tasks between one time and the next: what is run again if a run is stopped


@dataclass
class Warmth:
    """What some work gave, and what it took from torch's cache of compiled graphs and put there."""

    digests: list[str] = field(default_factory=list)
    stored: int = 0
    loaded: int = 0

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Counts what the cache does inside."""
        before = dict(counters["aot_autograd"])
        try:
            yield
        finally:
            now = counters["aot_autograd"]
            self.stored += now["autograd_cache_saved"] - before.get("autograd_cache_saved", 0)
            self.loaded += now["autograd_cache_hit"] - before.get("autograd_cache_hit", 0)

    def add(self, more: Warmth) -> None:
        """Further work."""
        self.digests += more.digests
        self.stored += more.stored
        self.loaded += more.loaded

    def difference(self, cold: Warmth) -> str:
        """What is not as it was the first time, or nothing."""
        if len(self.digests) != len(cold.digests):
            return f"{len(self.digests)} tensors, {len(cold.digests)} the first time"
        pairs = zip(self.digests, cold.digests, strict=True)
        other = [place for place, (mine, first) in enumerate(pairs) if mine != first]
        if other:
            return f"tensor {other[0]} and {len(other) - 1} more are not as the first time"
        if self.stored or self.loaded < cold.stored:
            return (
                f"graphs were not found in the cache: {cold.stored} were stored the first time,"
                f" then {self.stored}, and {self.loaded} loaded"
            )
        return ""

    def record(self) -> Record:
        """As a worker answers it."""
        return asdict(self)


class Caches(Enum):
    """What a worker is to do about torch's cache of graphs."""

    NONE = "none"  # nothing
    COLD = "cold"  # run a second time, after a reset
    WARM = "warm"  # run on the caches of another process that did the same


def difference(cold: Record | Lost, warm: Record | Lost) -> str:
    """What the outcome of a task on warm caches has otherwise than the first one, or nothing."""
    for outcome in (cold, warm):
        if isinstance(outcome, Lost):
            return outcome.reason
    assert not isinstance(cold, Lost) and not isinstance(warm, Lost)
    if "error" in warm:
        return str(warm["error"])
    return Warmth(**warm["warmth"]).difference(Warmth(**cold["warmth"]))


def without_digests(outcome: Record) -> Record:
    """As it is kept; what was stored in torch's cache stands in it, so that a report can tell."""
    rest = {name: value for name, value in outcome.items() if name != "warmth"}
    return {**rest, "stored": outcome.get("warmth", {}).get("stored", 0)}


def digests(leaves: Iterable[Any]) -> list[str]:
    """Of each tensor, or (name, tensor, ...): dtype, shape, strides and bits."""
    return [_digest(one if isinstance(one, torch.Tensor) else one[1]) for one in leaves]


def _digest(tensor: torch.Tensor) -> str:
    plain = tensor.detach()
    if plain.layout != torch.strided:
        return _digest(plain.to_dense())
    strides = [st for size, st in zip(plain.shape, plain.stride(), strict=True) if size > 1]
    form = f"{plain.dtype} {tuple(plain.shape)} {strides if plain.numel() else None}"
    dense = plain.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    bits = dense.view(-1).view(torch.uint8)
    return hashlib.sha256(form.encode() + bits.numpy().tobytes()).hexdigest()[:12]


def twice(
    pool: Pool[T], tasks: Sequence[T], again: Callable[[T], T], batch: int = BATCH
) -> Iterator[tuple[T, Record | Lost, Record | Lost]]:
    """Each task with its outcome, and that of `again(task)` by new processes on the same caches."""
    for start in range(0, len(tasks), batch):
        some = tasks[start : start + batch]
        first = dict(pool.run(some))
        second = dict(pool.run([again(task) for task in some]))
        for task in some:
            yield task, first[task], second[again(task)]
