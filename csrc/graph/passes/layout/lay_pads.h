// lay_pads: an image of few channels is padded as it lies, for a convolution that reads it.
//
// What it does: a pad of an image whose channels were brought last, and that contractions alone
// read, lies in memory as that image does, with channels in front. Single channels would be put
// between each other, element by element, and a tile's broadcasts read them anywhere as well.
//
//   %0: f32[1, 8, 8, 3] = permute %x {dims = [0, 2, 3, 1]}
//   %1: f32[1, 10, 8, 3] = pad %0 {before = 1, dim = 1, value = 0.0}
//   %2: f32[1, 8, 8, 32] = contract %1, %w {lhs = [d0, d1 + d4, d2, d5], ..}
//   =>
//   %1: f32[1, 10, 8, 3] strides(240, 8, 1, 80) = pad %0 {..}
//
// Requires a verified graph. Values whose strides are seen by a caller or a call stay as they are,
// as do dtypes of which instructions multiply several channels. Keeps what is computed.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct LayPadsOptions : PassOptions {};

bool lay_pads(Graph& graph, const LayPadsOptions& options);

}  // namespace mlcc::graph
