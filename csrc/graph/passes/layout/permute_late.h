// permute_late: images stay channels-last as long as nobody sees how they lie.
//
// What it does: a permute behind a convolution (graph/passes/contractions/convolutions.h) that
// brings channels back in front moves behind what reads it: pointwise ops, pads, windows, slices,
// reductions, cat. They are then computed as the convolution's result lies, in its kernel where
// they follow it, and the permutes of two convolutions meet and are gone.
//
//   %0: f32[1, 8, 8, 64] = contract ..                      %0: f32[1, 8, 8, 64] = contract ..
//   %1: f32[1, 64, 8, 8] = permute %0 {dims = [0, 3, 1, 2]}  =>  %1: f32[1, 8, 8, 64] = relu %0
//   %2: f32[1, 64, 8, 8] = relu %1                          %2: .. = permute %1 {dims = [0, 3, 1,
//   2]}
//
// Requires a verified graph. What the caller or an extern call gets is computed as it has to lie:
// there the permute stays. Other permutes than those of images stay, too; an input is one whose
// channels are last and that is permuted to have them in front. Keeps dtypes and shapes;
// leaves values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct PermuteLateOptions : PassOptions {};

bool permute_late(Graph& graph, const PermuteLateOptions& options);

}  // namespace mlcc::graph
