// gather_early: of what is computed only to be gathered from, the gathered elements alone.
//
// What it does: a gather from a pointwise value becomes that op on gathers from its operands, where
// the gather takes fewer elements than it is given and few ops stand behind it. What is broadcast
// along the gathered dimension is used as it is.
//
//   %0: f32[s0, 9] = sub %x, %m
//   %1: f32[s0, 1] = gather %0, %i {dim = 1}     =>     %0: f32[s0, 1] = gather %x, %i {dim = 1}
//                                                       %1: f32[s0, 1] = sub %0, %m
//
// Requires a verified graph. Keeps the check of the index: a value that is broadcast altogether
// stays. Never moves a read across a write.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct GatherEarlyOptions : PassOptions {};

bool gather_early(Graph& graph, const GatherEarlyOptions& options);

}  // namespace mlcc::graph
