// winograd: 3x3 convolutions with filters that seldom change get these transformed too.
//
// What it does: of static filters (F(2x2, 3x3); Lavin and Gray, 2015), computed once and kept: g
// the 3x3 of a channel, G g G' with G = [1 0 0; .5 .5 .5; .5 -.5 .5; 0 0 1], which are 16 numbers,
// in panels of columns as tiles read them. They become the third operand of the contraction, which
// means what it meant before: lowering may compute it from the one or the other operand.
//
//   %0: f32[1, 28, 28, 64] = contract %x, %w {lhs = [d0, d1 + d4, d2 + d5, d6],
//                                             reduced = [3, 3, 128], rhs = [d3, d6, d4, d5]}
//   =>
//   %9: f32[1, 16, 128, 64] = copy ..
//   %0: f32[1, 28, 28, 64] = contract %x, %w, %9 {..}
//
// Requires a verified graph, and PassOptions::tiles. Runs before operands are packed.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct WinogradOptions : PassOptions {};

bool winograd(Graph& graph, const WinogradOptions& options);

}  // namespace mlcc::graph
