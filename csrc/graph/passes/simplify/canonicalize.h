// canonicalize: removes what does nothing, and merges what can be said at once.
//
// What it does: drops permute, expand, reshape, slice, flip, cast, cat and copy that change
// nothing; merges two of the same kind into one; drops arithmetic that gives back its operand bit
// by bit (x * 1, x - 0.0, but not x + 0.0, which turns -0.0 into 0.0); decides `where` with a
// constant condition. Repeats until nothing changes.
//
//   %0: f32[8, 4] = permute %x {dims = [1, 0]}
//   %1: f32[4, 8] = permute %0 {dims = [1, 0]}        =>     %0: f32[4, 8] = relu %x
//   %2: f32[4, 8] = relu %1
//
// Requires a verified graph. Keeps dtypes, shapes, and the strides and aliases that callers and
// extern calls see; leaves values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct CanonicalizeOptions : PassOptions {};

bool canonicalize(Graph& graph, const CanonicalizeOptions& options);

}  // namespace mlcc::graph
