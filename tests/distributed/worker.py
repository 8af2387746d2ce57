"""One process of a group: `worker RANK WORLD STORE DESCRIPTOR` runs what standard input asks for, line by line."""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import traceback

import torch
import torch.distributed as dist

SECONDS = 60  # after which an op of the group that others do not take part in fails


def main(rank: int, world: int, store: str, descriptor: int) -> None:
    """Answers each request by one line: its result, or its error."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=SECONDS),
    )
    with os.fdopen(descriptor, "w", buffering=1) as answers:
        for line in sys.stdin:
            request = json.loads(line)
            module, function = request["name"].rsplit(".", 1)
            torch.manual_seed(0)
            torch._dynamo.reset()
            try:
                program = getattr(importlib.import_module(f"tests.distributed.{module}"), function)
                answer = {"result": program(*request["arguments"])}
            except Exception:
                answer = {"error": traceback.format_exc()}
            answers.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
