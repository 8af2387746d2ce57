// cse: one node instead of several that compute the same.
//
// What it does: of nodes with equal op, attributes, operands and type the first stays. Extern calls
// take part if they are pure: not random, without effects, writing into nothing, aliasing nothing.
//
//   %0: f32[4] = exp %x
//   %1: f32[4] = exp %x                               =>     %0: f32[4] = exp %x
//   %2: f32[4] = add %0, %1                                  %1: f32[4] = add %0, %0
//
// Requires a verified graph. Never merges across an extern call that writes into memory, and never
// makes two graph outputs, or an output and an input, one.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct CseOptions : PassOptions {};

bool cse(Graph& graph, const CseOptions& options);

}  // namespace mlcc::graph
