"""Memory of a model whose weights are kept beside their packs or stolen for them, against eager's.

usage: weights_memory.py [bert] [gpt2] [stack] [--calls N] [--with compile]

Each way of running (eager, keep, steal) is a process of its own that makes the weights and calls the model. `bert` and
`gpt2` are 12 layers of 768 with their embeddings, GPT-2's shared with its last layer; `stack` is 24 linear layers of
2048. Prints the largest resident memory, what is resident after the calls, both also without what the program takes by
itself (the same model with next to no weights), and the median of a call's time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WAYS = ("eager", "keep", "steal")
FULL_WIDTH = {"bert": 768, "gpt2": 768, "stack": 2048}
NARROW = 96  # the same code with next to no weights


def resident() -> tuple[float, float]:
    """The most and what is now, in MiB."""
    rows = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    peak, now = (int(rows[name].split()[0]) / 1024 for name in ("VmHWM", "VmRSS"))
    return peak, now


def make(name: str, width: int):  # type: ignore[no-untyped-def]  # torch is imported late
    """The model and its input."""
    import torch
    from torch import nn

    class Block(nn.Module):
        """A layer of a transformer."""

        def __init__(self, causal: bool) -> None:
            super().__init__()
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
            self.norms = nn.ModuleList([nn.LayerNorm(width), nn.LayerNorm(width)])
            self.causal = causal

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Attention and two linear layers."""
            parts = self.qkv(self.norms[0](x)).unflatten(-1, (3, 12, width // 12)).unbind(-3)
            q, k, v = (part.transpose(1, 2) for part in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
            x = x + self.out(y.transpose(1, 2).flatten(2))
            return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))

    class Model(nn.Module):
        """Words to words."""

        def __init__(self, words: int, causal: bool) -> None:
            super().__init__()
            self.embed = nn.Embedding(words, width)
            self.blocks = nn.ModuleList([Block(causal) for _ in range(12)])
            self.head = nn.Linear(width, words if causal else 2, bias=False)
            if causal:
                self.head.weight = self.embed.weight

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            """Scores."""
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x[:, -1])

    with torch.device("meta"):
        if name == "stack":
            model = nn.Sequential(*(nn.Linear(width, width) for _ in range(24)))
        else:
            words = 5000 if width < FULL_WIDTH[name] else 50257 if name == "gpt2" else 30522
            model = Model(words, name == "gpt2")
    x = torch.randn(64, width) if name == "stack" else torch.randint(5000, (1, 64))
    return model, x


def run(name: str, way: str, width: int, how: str, calls: int) -> None:
    """Prints one JSON object."""
    import torch

    torch.set_num_threads(1)
    model, x = make(name, width)
    model = model.to_empty(device="cpu").eval()
    if name == "gpt2":
        model.head.weight = model.embed.weight
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    loaded = resident()[1]
    call = model
    if way != "eager":
        import mlcc

        mlcc.config.weights = way
        call = mlcc.jit(model) if how == "jit" else torch.compile(model, backend="mlcc")
    times = []
    with torch.no_grad():
        for _ in range(calls):
            start = time.perf_counter()
            call(x)
            times.append(time.perf_counter() - start)
    time.sleep(1.5)  # blocks that nobody uses go back
    with torch.no_grad():
        call(x)
    peak, now = resident()
    print(
        json.dumps({"loaded": loaded, "peak": peak, "now": now, "time": sorted(times)[calls // 2]})
    )


def child(arguments: list[str], cache: str) -> dict[str, float]:
    """What a process prints."""
    environment = {
        **os.environ,
        "MLCC_CACHE_DIR": cache,
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torch",
    }
    done = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    result: dict[str, float] = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    return result


def main() -> None:
    """Run the children, print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=[])
    parser.add_argument("--calls", type=int, default=30)
    parser.add_argument("--with", dest="how", choices=("jit", "compile"), default="jit")
    parser.add_argument("--child", nargs=3)
    options = parser.parse_args()
    if options.child:
        name, way, width = options.child
        run(name, way, int(width), options.how, options.calls)
        return
    for name, width in FULL_WIDTH.items():
        if options.models and name not in options.models:
            continue
        print(f"{name}:")
        with tempfile.TemporaryDirectory() as folder:
            eager = None
            for way in WAYS:

                def measure(width: int, way: str = way) -> dict[str, float]:
                    how = ["--with", options.how, "--calls", str(options.calls)]
                    return child([*how, "--child", name, way, str(width)], f"{folder}/{way}")  # noqa: B023

                found, program = measure(width), measure(NARROW)["now"]
                eager = eager or (found, program)
                peak, now = (
                    (
                        found[key],
                        found[key] / eager[0][key],
                        found[key] - program,
                        eager[0][key] - eager[1],
                    )
                    for key in ("peak", "now")
                )
                print(
                    f"  {way:5} peak {peak[0]:5.0f} MiB, {peak[1]:.2f} of eager (without program "
                    f"{peak[2]:5.0f}, {peak[2] / peak[3]:.2f}); later {now[0]:5.0f}, {now[1]:.2f} "
                    f"({now[2]:5.0f}, {now[2] / now[3]:.2f}); {found['time'] * 1e3:6.1f} ms a call"
                )


if __name__ == "__main__":
    main()
