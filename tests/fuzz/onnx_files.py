"""Damaged models of ONNX: each is refused by `mlcc.Error`, or loads; none takes much memory or long.

usage: python tests/fuzz/onnx_files.py [--seed N] [--runs N]

Half of them have changed bytes, half have changed fields: numbers, names, repeated and missing parts. Memory is limited
to what the process has before, and 2 GB.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT))

import onnx  # noqa: E402
from google.protobuf.descriptor import FieldDescriptor  # noqa: E402
from google.protobuf.message import Message  # noqa: E402
from onnx.backend.test.loader import load_model_tests  # noqa: E402

import mlcc  # noqa: E402

MOST_SECONDS = 10.0
MOST_BYTES = 2 * 2**30
EVERY = 23  # of the models of onnx's own tests
NUMBERS = (0, 1, -1, 2, 7, 127, 255, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, -(2**63))


def models() -> list[onnx.ModelProto]:
    """Small models of many ops."""
    cases = [case.model for case in load_model_tests(kind="node") if case.model is not None]
    return [*cases[::EVERY], _convolutions()]


def _convolutions() -> onnx.ModelProto:
    """With initializers, of which node tests have none."""
    return onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]>
        net (float[n, 1, 4, 4] x) => (float[n, 2] y)
        <float[2, 1, 3, 3] w = {1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 7, 6, 5, 4, 3, 2, 1}, int64[2] target = {0, -1},
         float[8, 2] v = {1, 2, 3, 4, 5, 6, 7, 8, 9, 8, 7, 6, 5, 4, 3, 2}>
        { c = Conv(x, w)
          r = Relu(c)
          f = Reshape(r, target)
          y = MatMul(f, v) }"""
    )


def damaged(model: onnx.ModelProto, seed: int) -> bytes:
    """A model after a few changes."""
    draw = random.Random(seed)
    if draw.random() < 0.5:
        return _changed_bytes(model.SerializeToString(), draw)
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    for _ in range(draw.choice((1, 1, 2, 4))):
        _change_field(draw.choice(_messages(changed)), draw)
    return changed.SerializeToString()


def _changed_bytes(text: bytes, draw: random.Random) -> bytes:
    changed = bytearray(text)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at, kind = draw.randrange(len(changed) + 1), draw.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draw.randrange(8)
        elif kind == 1 and at < len(changed):
            changed[at] = draw.choice((0, 1, 127, 128, 255))
        elif kind == 2:
            del changed[at : at + draw.randrange(1, 9)]
        elif kind == 3:
            changed[at:at] = draw.randbytes(draw.randrange(1, 5))
        elif draw.random() < 0.2:
            del changed[at:]
    return bytes(changed)


def _messages(message: Message) -> list[Message]:
    """All that have a field, the message itself first."""
    found = [message]
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            parts = list(value) if field.is_repeated else [value]
            found += [below for part in parts for below in _messages(part)]
    return found


def _change_field(message: Message, draw: random.Random) -> None:
    field = draw.choice(message.DESCRIPTOR.fields)
    set_fields = [told for told, _ in message.ListFields()]
    if set_fields and draw.random() < 0.8:
        field = draw.choice(set_fields)
    if field.is_repeated:
        _change_list(getattr(message, field.name), field, draw)
    elif field.type == FieldDescriptor.TYPE_MESSAGE or draw.random() < 0.2:
        message.ClearField(field.name)
    else:
        setattr(message, field.name, _value(field, draw))


def _change_list(values: Any, field: FieldDescriptor, draw: random.Random) -> None:
    at, kind = draw.randrange(len(values) + 1), draw.randrange(4)
    if kind == 0 and at < len(values):
        del values[at]
    elif kind == 1 and values:  # once more
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            values.add().CopyFrom(draw.choice(values))
        else:
            values.append(draw.choice(values))
    elif field.type == FieldDescriptor.TYPE_MESSAGE:
        values.add()
    elif at < len(values):
        values[at] = _value(field, draw)
    else:
        values.append(_value(field, draw))


def _value(field: FieldDescriptor, draw: random.Random) -> Any:
    if field.type == FieldDescriptor.TYPE_STRING:
        return draw.choice(("", "x", "y", "Relu", "value", "\0", "../x", "n" * 1000))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw.randbytes(draw.choice((0, 1, 4, 8, 64)))
    if field.type in (FieldDescriptor.TYPE_FLOAT, FieldDescriptor.TYPE_DOUBLE):
        return draw.choice((0.0, -1.0, float("nan"), float("inf")))
    if field.enum_type is not None:
        return draw.choice(field.enum_type.values).number
    number = draw.choice(NUMBERS)
    is_short = field.type in (FieldDescriptor.TYPE_INT32, FieldDescriptor.TYPE_UINT32)
    number = number % 2**31 if is_short else number
    return abs(number) % 2**63 if field.type == FieldDescriptor.TYPE_UINT64 else number


def run(seeds: range) -> Counter[str]:
    """How many were refused and how many loaded; AssertionError with the seed of one that was neither."""
    kept = models()
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + MOST_BYTES, resource.RLIM_INFINITY))
    counts: Counter[str] = Counter()
    for seed in seeds:
        text = damaged(kept[seed % len(kept)], seed)
        start = time.process_time()
        try:
            mlcc.onnx.load(text)
            counts["loaded"] += 1
        except mlcc.Error:
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"seed {seed}: {type(error).__name__}: {error}") from error
        seconds = time.process_time() - start
        assert seconds < MOST_SECONDS, f"seed {seed}: {seconds:.0f} s"
    return counts


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=2000)
    options = parser.parse_args()
    counts = run(range(options.seed, options.seed + options.runs))
    print(f"{counts['refused']} refused, {counts['loaded']} loaded")
    return 0


if __name__ == "__main__":
    sys.exit(main())
