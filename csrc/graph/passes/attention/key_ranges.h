// key_ranges: masks that compare places of queries and keys become ranges of keys.
//
// What it does: where scores of `attend` and of its norms are -inf outside of a range of keys,
// because a comparison of places says so, the node takes this range, so that its kernel leaves out
// blocks of keys which no query of a tile sees. So does `attend_gradients` where its weights and
// gradients of scores are products, sums and quotients of exponentials of such scores. Causal masks
// and sliding windows are such: whatever adds up comparisons `k <= q + c` and `k > q - w` by `and`.
// A mask that says no more than the range is left out.
//
//   %0: i64[8] = iota {start = 0, step = 1}
//   %1: i64[8, 1] = reshape %0
//   %2: bool[8, 8] = ge %1, %0
//   %3: f32[8, 8] = where %2, %s, %low                           // -inf
//   %4: f32[8, 64] = attend %3, %v {.., range = [0, 8], ..}
//   =>
//   %3: f32[8, 64] = attend %s, %v {.., range = [0, min(d0 + 1, 8)], ..}
//
// Requires a verified graph. Rows without keys stay what they were: NaN, or 0 (`empty_is_zero`).
// What is hidden does not count at all: a score or a value there that is NaN or infinite makes no
// NaN, as 0 times NaN or NaN plus -inf would. Leaves values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct KeyRangesOptions : PassOptions {};

bool key_ranges(Graph& graph, const KeyRangesOptions& options);

}  // namespace mlcc::graph
