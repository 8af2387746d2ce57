// convolutions: convolutions as contractions on channels-last data instead of calls.
//
// What it does: calls of aten.convolution that are not transposed become `contract`, whose rows are
// pixels and whose columns are channels; the bias is added to its accumulators.
//
//   %0: f32[1, 64, 9, 9] = extern "aten.convolution.default"(%x, %w, none, [1, 1], [1, 1], ..)
//   =>
//   %0: f32[1, 9, 9, 32] = permute %x {dims = [0, 2, 3, 1]}
//   %1: f32[1, 11, 9, 32] = pad %0 {before = 1, dim = 1, value = 0.0}
//   %2: f32[1, 11, 11, 32] = pad %1 {before = 1, dim = 2, value = 0.0}
//   %3: f32[1, 9, 9, 64] = contract %2, %w {lhs = [d0, d1 + d4, d2 + d5, d6],
//                                           reduced = [3, 3, 32], rhs = [d3, d6, d4, d5]}
//   %4: f32[1, 64, 9, 9] = permute %3 {dims = [0, 3, 1, 2]}
//
// Depthwise ones behind other convolutions become sums of products with shifted images.
//
// Requires a verified graph, and PassOptions::tiles where code for contractions is wanted. Keeps
// dtypes, shapes and strides; leaves values without users to dce. What a library computes faster
// stays a call.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct ConvolutionOptions : PassOptions {};

bool convolutions(Graph& graph, const ConvolutionOptions& options);

}  // namespace mlcc::graph
