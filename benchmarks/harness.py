"""Interleaved timing: what is compared runs in turns, so that a machine's moods meet all alike.

comparison = compare({"eager": f, "mlcc": g}, seconds=3)
print(comparison.ratio("mlcc"))    # median over the rounds of eager's time through mlcc's: above 1 is faster
"""

from __future__ import annotations

import gc
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

# A shorter sample is repeated within one measurement: the clock and the loop around it cost about 0.1 us.
SHORTEST_SAMPLE_SECONDS = 0.5e-3


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of some samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Of at least one sample."""
        if len(samples) == 1:
            return cls(samples[0], samples[0], samples[0])
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return cls(median, low, high)


@dataclass(frozen=True)
class Comparison:
    """Seconds per call of each callable, round by round; the first one is the baseline."""

    seconds: dict[str, list[float]]
    calls_per_sample: int
    threads: int

    @property
    def baseline(self) -> str:
        """What the others are compared with."""
        return next(iter(self.seconds))

    @property
    def rounds(self) -> int:
        """How often each callable was measured."""
        return len(self.seconds[self.baseline])

    def spread(self, name: str) -> Spread:
        """Seconds per call."""
        return Spread.of(self.seconds[name])

    @property
    def low_seconds(self) -> list[float]:
        """The lower quartile of each callable, in order: what other work on the machine disturbs least."""
        return [self.spread(name).low for name in self.seconds]

    def ratio(self, name: str) -> Spread:
        """The baseline's time through that of `name`, taken within each round: above 1, `name` is faster."""
        pairs = zip(self.seconds[self.baseline], self.seconds[name], strict=True)
        return Spread.of([base / own for base, own in pairs])

    def to_dict(self) -> dict[str, object]:
        """For a JSON file: spreads and ratios, without the single samples."""
        return {
            "baseline": self.baseline,
            "rounds": self.rounds,
            "calls_per_sample": self.calls_per_sample,
            "threads": self.threads,
            "seconds": {name: asdict(self.spread(name)) for name in self.seconds},
            "ratio": {name: asdict(self.ratio(name)) for name in self.seconds},
        }

    def to_json(self) -> str:
        """`to_dict` as text."""
        return json.dumps(self.to_dict())


def compare(
    functions: Mapping[str, Callable[[], object]],
    *,
    seconds: float = 3.0,
    min_rounds: int = 7,
    max_rounds: int = 200,
    warmup: int = 2,
    threads: int | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Call the functions in turns for about `seconds`, warm-up included, in another order each round.

    Who comes first finds the caches as the last one left them: after eager's temporaries the same kernel took up to
    1.7 times as long as after itself. Drawn by a fixed seed.

    At least `min_rounds` rounds are measured, however long they take. `threads` sets torch's intra-op threads. `clock`
    gives seconds; with `time.process_time` the other work of a busy machine disturbs less.
    """
    threads = _set_threads(threads)
    start = time.perf_counter()
    calls = _warm_up(functions, warmup, clock)
    samples: dict[str, list[float]] = {name: [] for name in functions}
    names, order = list(functions), random.Random(0)
    with _no_garbage_collection():
        while _goes_on(len(samples[names[0]]), start, seconds, min_rounds, max_rounds):
            for name in order.sample(names, len(names)):
                samples[name].append(_sample(functions[name], calls, clock))
    return Comparison(samples, calls, threads)


def _set_threads(threads: int | None) -> int:
    import torch

    if threads is not None:
        torch.set_num_threads(threads)
    return torch.get_num_threads()


def _warm_up(
    functions: Mapping[str, Callable[[], object]], warmup: int, clock: Callable[[], float]
) -> int:
    """Calls each function `warmup` times; how many calls of the fastest make a sample long enough."""
    fastest = float("inf")
    for _ in range(max(warmup, 1)):
        for function in functions.values():
            fastest = min(fastest, _sample(function, 1, clock))
    return max(1, round(SHORTEST_SAMPLE_SECONDS / max(fastest, 1e-7)))


def _goes_on(rounds: int, start: float, seconds: float, min_rounds: int, max_rounds: int) -> bool:
    if rounds < min_rounds:
        return True
    return rounds < max_rounds and time.perf_counter() - start < seconds


def _sample(function: Callable[[], object], calls: int, clock: Callable[[], float]) -> float:
    """Seconds per call; the results live until the next call, as they do in a program."""
    start = clock()
    for _ in range(calls):
        function()
    return (clock() - start) / calls


@contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Collects once, then not before the end."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
