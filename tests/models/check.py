"""One architecture of the zoo, compiled, against eager: a process that prints a JSON line for each way to run it.

usage: check.py NAME [--backend NAME] [--ways WAY[,WAY...]]

A way is inference or training, in float32, bfloat16 (weights and inputs) or autocast (weights in float32). Each runs at
the three lengths of the architecture's kind. Right is what the accuracy rule says of all results (and gradients)
together, against the same model in float64. What breaks it is unsteady, not wrong, where eager with other roundings
(each op's result off by one epsilon) is as far off. The graphs that ran eagerly are told with the reasons.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import logging
import os
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded

import torch  # noqa: E402

from benchmarks.observe import observer, summarize  # noqa: E402
from mlcc.importer.fx_graph import forget_logged  # noqa: E402
from tests.arguments import names_among  # noqa: E402
from tests.models.zoo import ARCHITECTURES, LENGTHS, Architecture  # noqa: E402
from tests.python.accuracy import InFloat64, judge_together  # noqa: E402
from tests.python.roundings import OtherRoundings  # noqa: E402
from tests.warm import Caches, Warmth, digests  # noqa: E402

DTYPES = ("float32", "bfloat16", "autocast")
NUM_OTHER_RUNS = 4
WAYS = tuple(f"{phase} {dtype}" for phase in ("inference", "training") for dtype in DTYPES)

Record = dict[str, Any]
Inputs = dict[str, torch.Tensor]


def main() -> None:
    """Run the ways that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("name", choices=sorted(ARCHITECTURES))
    parser.add_argument("--backend", default="mlcc")
    parser.add_argument("--ways", type=names_among(WAYS), default=list(WAYS))
    arguments = parser.parse_args()
    for way, record in check_ways(arguments.name, arguments.ways, arguments.backend):
        print(json.dumps({"way": way, **record}), flush=True)


def check_ways(
    name: str, ways: Sequence[str], backend: str, caches: Caches = Caches.NONE
) -> Iterator[tuple[str, Record]]:
    """Each way and what became of it, on one thread, with the warnings of all libraries turned off."""
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    for way in ways:
        yield way, check(ARCHITECTURES[name], way, backend, caches)


def check(architecture: Architecture, way: str, backend: str, caches: Caches) -> Record:
    """What became of one way: `reason` is empty if it is right; else what eager does is right and what we do is not."""
    start = time.monotonic()
    try:
        record = _check(architecture, way, backend, caches)
    except Exception as error:
        text = " ".join(str(error).split())
        record = {"reason": f"{type(error).__name__}: {text[:800]}"}
    record["seconds"] = round(time.monotonic() - start, 1)
    return record


def _check(architecture: Architecture, way: str, backend: str, caches: Caches) -> Record:
    if caches is Caches.WARM:
        return {"reason": "", "warmth": _Check(architecture, way, backend).run_again().record()}
    check = _Check(architecture, way, backend)
    record = check.run()
    if caches is Caches.COLD and not record["reason"]:
        reason = _Check(architecture, way, backend).run_again().difference(check.warmth)
        record["reason"] = f"after a reset: {reason}" if reason else ""
        record["warmth"] = check.warmth.record()
    return record


class _Check:
    def __init__(self, architecture: Architecture, way: str, backend: str) -> None:
        torch._dynamo.reset()
        forget_logged()
        self.warmth = Warmth()  # of the compiled model
        self._architecture = architecture
        self._trains = way.startswith("training")
        self._dtype = way.split()[1]
        self._model = architecture.build().train(self._trains)
        if self._dtype == "bfloat16":
            self._model.to(torch.bfloat16)
        self._wide = copy.deepcopy(self._model).double()
        if hasattr(self._wide, "set_experts_implementation"):
            self._wide.set_experts_implementation("eager")  # grouped_mm takes no float64
        self._observer = observer(backend)
        self._compiled = torch.compile(self._model, backend=self._observer.backend)

    def run(self) -> Record:
        reasons: list[str] = []
        unsteady: list[str] = []
        with _fallbacks() as fallbacks:
            for length in LENGTHS[self._architecture.kind]:
                inputs = self._inputs(length)
                eager = self._evaluate(self._model, inputs)
                found = self._evaluate_compiled(inputs)
                exact = self._exact(inputs)
                verdict = judge_together(found, eager, exact)
                if verdict:
                    continue
                text = f"length {length}: {verdict.reason}"
                others = self._other_runs(inputs)
                is_unsteady = judge_together(found, eager, exact, others)
                (unsteady if is_unsteady else reasons).append(text)
        summary = summarize(self._observer.graphs())
        return {
            "reason": "; ".join(reasons),
            "unsteady": "; ".join(unsteady),
            "graphs": summary.graphs,
            "kernels": summary.kernels,
            "nodes": summary.nodes,
            "aten_calls": summary.aten_calls,
            "aten_ops": summary.aten_ops,
            "eager_graphs": sorted({text for text in fallbacks if "runs eagerly" in text}),
            "call_reasons": sorted(_call_reasons(fallbacks)),
        }

    def run_again(self) -> Warmth:
        """What the compiled model gives, without judging it."""
        for length in LENGTHS[self._architecture.kind]:
            self._evaluate_compiled(self._inputs(length))
        return self.warmth

    def _evaluate_compiled(self, inputs: Inputs) -> list[torch.Tensor]:
        with self.warmth.measured():
            found = self._evaluate(self._compiled, inputs)
        self.warmth.digests += digests(found)
        return found

    def _inputs(self, length: int) -> Inputs:
        inputs = self._architecture.feed(self._model, length)
        if self._dtype != "bfloat16":
            return inputs
        return {
            name: value.bfloat16() if value.is_floating_point() else value
            for name, value in inputs.items()
        }

    def _exact(self, inputs: Inputs) -> list[torch.Tensor]:
        wide = {
            name: value.double() if value.is_floating_point() else value
            for name, value in inputs.items()
        }
        with InFloat64():
            return self._evaluate(self._wide, wide, autocast=False)

    def _other_runs(self, inputs: Inputs) -> Iterator[list[torch.Tensor]]:
        """Eager where what each op gives is off by one epsilon: far off, where the model amplifies roundings.

        A gradient through relu6 and normalized rows changes by 1e-2 when one element crosses a kink.
        """
        for seed in range(NUM_OTHER_RUNS):
            with OtherRoundings(seed):
                yield self._evaluate(self._model, inputs)

    def _evaluate(self, model: Any, inputs: Inputs, autocast: bool = True) -> list[torch.Tensor]:
        """Results, and where the model is trained the gradients of its parameters, by name."""
        chooses = autocast and self._dtype == "autocast"
        plain = getattr(model, "_orig_mod", model)
        plain.zero_grad(set_to_none=True)
        torch.manual_seed(0)
        with torch.set_grad_enabled(self._trains):
            with torch.autocast("cpu", torch.bfloat16, enabled=chooses):
                outputs = [
                    value for value in model(**inputs).values() if isinstance(value, torch.Tensor)
                ]
            if not self._trains:
                return outputs
            floats = [o for o in outputs if o.is_floating_point() and o.requires_grad]
            loss = torch.stack([(o.to(_widest(o)) * _weights(o)).mean() for o in floats]).sum()
            loss.backward()
        gradients = [p.grad for _, p in plain.named_parameters() if p.grad is not None]
        return [*(o.detach() for o in outputs), *gradients]


def _weights(output: torch.Tensor) -> torch.Tensor:
    """Small integers, the same in any dtype: of what was normalized last, squares have no gradient but noise."""
    return torch.arange(output.numel()).remainder(7).sub(3).reshape(output.shape)


def _widest(tensor: torch.Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


@contextlib.contextmanager
def _fallbacks() -> Iterator[list[str]]:
    """What the log of fallbacks says inside."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger, handler = logging.getLogger("mlcc.fallback"), Handler()
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _call_reasons(lines: Sequence[str]) -> set[tuple[str, str]]:
    """(op, reason) of each "op: ATen call (reason)"."""
    parted = (line.partition(": ATen call ") for line in lines)
    return {(op, reason.strip("()")) for op, found, reason in parted if found}


if __name__ == "__main__":
    main()
