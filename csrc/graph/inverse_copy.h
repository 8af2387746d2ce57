// The way back from a copy that only moves elements: weights that lie in the order of a kernel, as
// they lay before.
//
//   graph @kept(%w0: f32[8, 4]) {                 graph @kept(%x: f32[4, 16]) {
//     %0: f32[4, 8] = permute %w0 {...}             %0: f32[4, 8] = slice %x {dim = 1, ...}
//     %1: f32[4, 16] = pad %0 {dim = 1, ...}  =>    %1: f32[8, 4] = permute %0 {...}
//     %2: f32[4, 16] = copy %1                      %2: f32[8, 4] = copy %1
//     return %2                                     return %2
#pragma once

#include <memory>

#include "graph/graph.h"

namespace mlcc::graph {

// The graph that computes the input of `graph` from its output. Null unless `graph` is a chain of
// permutations, reshapes, paddings and copies of known sizes from its only input to its only
// output, so that each element of the input is in the output.
std::unique_ptr<Graph> inverse_of_copy(const Graph& graph);

}  // namespace mlcc::graph
