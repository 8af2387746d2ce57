// spread_rows: rows of a contraction's operand that would meet in a few sets of a cache lie apart.
//
// What it does: where a tile reads several rows at once that are a multiple of a page apart, the
// value gets rows that are a cache line longer in memory.
//
//   %0: f32[64, 1024] = gelu %x
//   %1: f32[64, 32] = contract %0, %w {lhs = [d0, d2], ..}
//   =>
//   %0: f32[64, 1024] strides(1040, 1) = gelu %x
//
// Requires a verified graph. Values whose strides are a caller's or a call's, inputs, and what lies
// in memory in another way than dense stay as they are. Keeps what is computed.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct SpreadRowsOptions : PassOptions {};

bool spread_rows(Graph& graph, const SpreadRowsOptions& options);

}  // namespace mlcc::graph
