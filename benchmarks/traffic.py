"""How many bytes a workload moves: by eager's ops one by one, and by mlcc's kernels.

moved = op_by_op(case)            # each op's inputs once and its results once
with KernelLog() as log:
    mlcc.jit(case.function, dynamic=False)(*case.inputs)
log.bytes, log.calls              # each kernel's inputs once and its outputs once; calls of ATen beside them

Tensors count whole where an op reads a part of them, but for inputs of which the case says how much is read.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.workloads import Case


def op_by_op(case: Case) -> int:
    """Bytes that eager's ops read and write in one call; views move none."""
    inputs = [x.clone() if i in case.in_place else x for i, x in enumerate(case.inputs)]
    with torch.no_grad(), Traffic() as traffic:
        case.function(*inputs)
    return traffic.bytes - unread_bytes(case)


def unread_bytes(case: Case) -> int:
    """Of the inputs."""
    return 0 if case.bytes_read is None else sum(map(_bytes, case.inputs)) - case.bytes_read


class Traffic(TorchDispatchMode):
    """Bytes that the ops called while this is active read and write, but for those of the names in `but`."""

    def __init__(self, but: Collection[str] = ()) -> None:
        super().__init__()
        self.bytes = 0
        self._but = but

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        del types
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        read = _tensors((args, kwargs))
        named = zip(func._schema.arguments, args, strict=False)
        changed = [x for slot, x in named if slot.alias_info and slot.alias_info.is_write]
        storages = {x.untyped_storage().data_ptr() for x in read}
        made = [x for x in _tensors(results) if x.untyped_storage().data_ptr() not in storages]
        if (made or changed) and func.overloadpacket.__name__ not in self._but:
            self.bytes += sum(map(_bytes, (*read, *made, *_tensors(changed))))
        return results


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


def _bytes(tensor: Tensor) -> int:
    """Of the elements that have a place of their own; expanded ones share theirs."""
    count = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        count *= size if stride else min(size, 1)
    return count


class KernelLog(logging.Handler):
    """What mlcc's logs say of the kernels that are compiled while this is open, by sizes that are numbers."""

    _CHANNELS = ("mlcc.fusion", "mlcc.perf")

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.kernels = 0
        self.bytes = 0
        self.calls = 0  # of ATen
        self._before: list[tuple[int, bool]] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Read a line of the log."""
        text = record.getMessage()
        if found := re.search(r"^kernel \d+: .*\], ideal (\d+) bytes", text):
            self.kernels += 1
            self.bytes += int(found[1])
        elif found := re.search(r" (\d+) ATen calls,", text):
            self.calls += int(found[1])

    def __enter__(self) -> KernelLog:
        for logger in map(logging.getLogger, self._CHANNELS):
            self._before.append((logger.level, logger.propagate))
            logger.setLevel(logging.INFO)
            logger.propagate = False
            logger.addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        for name, (level, propagate) in zip(self._CHANNELS, self._before, strict=True):
            logger = logging.getLogger(name)
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
