"""Attention as a nest of the loop IR, written by hand: what code generated for it may reach beside eager's.

usage: attention_nest.py [--lengths 384,1536] [--widths 64,128] [--heads 12]

Twelve queries at a time against blocks of keys: the scores of a block are a contraction over keys that are packed in
panels of 32, the running maximum and sum of each query repair what was added up so far, and the weights are the left
operand of the next contraction. No masks; lengths are multiples of 384. Packing is not timed. One thread, CPU time, the
best of several runs in turns; shares of 4 * heads * length^2 * width operations.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import torch

from mlcc._load import load_core

ROWS, PANEL = 12, 32


def nest(width: int, block: int) -> str:
    """The kernel's text for heads of that width and blocks of so many keys."""
    scale = width**-0.5
    return f"""
kernel @attention(%heads: i64, %length: i64;
    %q: in f32[%heads * %length * {width}], %k: in f32[%heads * %length * {width}],
    %v: in f32[%heads * %length * {width}], %y: out f32[%heads * %length * {width}]) {{
  let %tiles: i64 = floordiv(%length, {ROWS})
  for %task in 0..%heads * %tiles parallel {{
    let %first: i64 = floordiv(%task, %tiles) * %length
    let %row: i64 = %first + mod(%task, %tiles) * {ROWS}
    alloc %out: stack f32[{ROWS * width}]
    alloc %largest: stack f32[{ROWS}]
    alloc %sum: stack f32[{ROWS}]
    alloc %s: stack f32[{ROWS * block}]
    for %r0 in 0..{ROWS} {{
      store %largest[%r0] = -inf
      store %sum[%r0] = 0.0
      for %d0 in 0..{width} vector(16) {{ store %out[%r0 * {width} + %d0] = 0.0 }}
    }}
    for %b in 0..floordiv(%length, {block}) {{
      for %p in 0..{block // PANEL} {{
        contract %s[%p * {PANEL}] by ({block}, 1) = %q[%row * {width}] by ({width}, 1)
          * %k[(%first + %b * {block} + %p * {PANEL}) * {width}] by (1, {PANEL})
          tile({ROWS}, {PANEL}) depth({width})
      }}
      for %r1 in 0..{ROWS} {{
        reduce %j0 in 0..{block} vector(16) unroll(4) (%m: f32 = -inf) {{
          yield max(%m, %s[%r1 * {block} + %j0])
        }} combine (%ml, %mr) {{ yield max(%ml, %mr) }} -> %most
        let %before: f32 = %largest[%r1]
        let %after: f32 = max(%before, %most * {scale})
        let %repair: f32 = exp(%before - %after)
        store %largest[%r1] = %after
        reduce %j1 in 0..{block} vector(16) unroll(4) (%t: f32 = 0.0) {{
          let %w: f32 = exp(fma(%s[%r1 * {block} + %j1], {scale}, neg(%after)))
          store %s[%r1 * {block} + %j1] = %w
          yield %t + %w
        }} combine (%tl, %tr) {{ yield %tl + %tr }} -> %total
        store %sum[%r1] = %sum[%r1] * %repair + %total
        for %d1 in 0..{width} vector(16) {{
          store %out[%r1 * {width} + %d1] = %out[%r1 * {width} + %d1] * %repair
        }}
      }}
      contract %out[0] by ({width}, 1) += %s[0] by ({block}, 1)
        * %v[(%first + %b * {block}) * {width}] by (1, {width}) tile({ROWS}, {width}) depth({block})
    }}
    for %r2 in 0..{ROWS} {{
      let %reciprocal: f32 = div(1.0, %sum[%r2])
      for %d2 in 0..{width} vector(16) {{
        store %y[(%row + %r2) * {width} + %d2] = %out[%r2 * {width} + %d2] * %reciprocal
      }}
    }}
  }}
}}
"""


def seconds(run: Callable[[], object]) -> float:
    start = time.thread_time()
    run()
    return time.thread_time() - start


def measure(heads: int, length: int, width: int, block: int) -> None:
    """Prints one row; raises AssertionError where the result is wrong."""
    core = load_core()
    q, k, v = (torch.randn(1, heads, length, width) for _ in range(3))
    packed = k.view(heads, length // PANEL, PANEL, width).transpose(2, 3).contiguous()
    y = torch.empty_like(q)
    text = nest(width, block)

    def ours() -> None:
        core.run_loop_kernel(text, [heads, length], [q, packed, v, y])

    def eager() -> torch.Tensor:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v)

    ours()
    torch.testing.assert_close(y, eager())
    pairs = [(seconds(ours), seconds(eager)) for _ in range(9)]
    ratio = sorted(theirs / our for our, theirs in pairs)[len(pairs) // 2]
    rate = 4 * heads * length**2 * width / min(our for our, _ in pairs) / 1e9
    print(
        f"{length} x {width}, blocks of {block}: {rate:.1f} GFLOP/s, {ratio:.2f} of eager's speed"
    )


def main() -> None:
    """Runs all rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", default="384,1536")
    parser.add_argument("--widths", default="64,128")
    parser.add_argument("--heads", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    for width in map(int, args.widths.split(",")):
        for length in map(int, args.lengths.split(",")):
            for block in (64, 128, 192):
                measure(args.heads, length, width, block)


if __name__ == "__main__":
    main()
