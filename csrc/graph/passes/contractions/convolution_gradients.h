// convolution_gradients: gradients of convolutions as contractions on channels-last data.
//
// What it does: of calls of aten.convolution_backward the gradient of the image becomes a
// `contract` of that of the result with the weights, that of the weights one over batch and pixels
// (first in parts that stay in a cache, then their sum), that of the bias a sum.
//
//   %0: f32[8, 32, 9, 9], %1: f32[64, 32, 3, 3], %2: f32[64] =
//       extern "aten.convolution_backward.default"(%g, %x, %w, [64], [1, 1], [1, 1], ..)
//   =>
//   %0: f32[8, 9, 9, 64] = permute %g {dims = [0, 2, 3, 1]}
//   %1: f32[8, 11, 11, 64] = pad pad %0 ..
//   %2: f32[8, 9, 9, 32] = contract %1, %w {lhs = [d0, d1 - d4 + 2, d2 - d5 + 2, d6],
//                                           reduced = [3, 3, 64], rhs = [d6, d3, d4, d5]}
//   %3: f32[8, 32, 9, 9] = permute %2 {dims = [0, 3, 1, 2]}
//   %4: f32[4, 3, 3, 64, 32] = contract %1, .. {.., reduced = [2, 9, 9], ..}
//   %5: f32[3, 3, 64, 32] = sum %4 {dims = [0], keepdim = false}
//   %6: f32[64, 32, 3, 3] = permute %5 {dims = [2, 3, 0, 1]}
//   %7: f32[64] = sum %0 {dims = [0, 1, 2], keepdim = false}
//
// Requires a verified graph, and PassOptions::tiles where code for contractions is wanted. Keeps
// dtypes, shapes and strides; leaves values without users to dce. A gradient of the image that a
// library computes faster stays a call, which then computes nothing else.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct ConvolutionGradientOptions : PassOptions {};

bool convolution_gradients(Graph& graph, const ConvolutionGradientOptions& options);

}  // namespace mlcc::graph
