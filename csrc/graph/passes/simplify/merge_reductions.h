// merge_reductions: one reduction instead of two over dimensions that lie one behind the other.
//
// What it does: lets a max, min, any, all, or a sum or prod of integers, over what the same op gave
// reduce all dimensions at once, where these are the last ones.
//
//   %0: f32[8, 4] = max %x {dims = [2], ...}
//   %1: f32[8] = max %0 {dims = [1], ...}             =>     %0: f32[8] = max %x {dims = [1, 2],
//   ...} return %1                                                return %0
//
// Sums of floats stay: each rounds. So do columns, which are less work after the rows, and rows
// that are in a kernel anyway, since another reduction computes or reads them: one over all of them
// would need another. Of zeros of both signs the max may be the other one, as with other vectors.
//
// Requires a verified graph, and canonicalize and cse before it. Leaves the first one to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct MergeReductionsOptions : PassOptions {};

bool merge_reductions(Graph& graph, const MergeReductionsOptions& options);

}  // namespace mlcc::graph
