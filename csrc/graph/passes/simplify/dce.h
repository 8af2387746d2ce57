// dce: drops nodes whose results nobody uses.
//
// What it does: walks backwards and erases nodes without users that are no graph output.
//
//   %0: f32[4] = exp %x
//   %1: f32[4] = neg %x                               =>     %0: f32[4] = neg %x
//   return %1                                                return %0
//
// Keeps nodes with effects: extern calls that write, draw random numbers (later draws would change)
// or say so, and those that define a size symbol.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct DceOptions : PassOptions {};

bool dce(Graph& graph, const DceOptions& options);

}  // namespace mlcc::graph
