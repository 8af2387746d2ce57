// fold_constants: computes what is known while compiling.
//
// What it does: sizes that are numbers, casts and index maps of constants, and plain arithmetic on
// constants become `full`.
//
//   %0: i64[] = size_value {size = 8}
//   %1: f32[] = cast %0                               =>     %0: f32[4] = full {value = 8.0}
//   %2: f32[4] = expand %1
//
// Requires a verified graph. Results are rounded as at run time, bit by bit. Keeps shapes, dtypes
// and seen strides; leaves values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct FoldConstantsOptions : PassOptions {};

bool fold_constants(Graph& graph, const FoldConstantsOptions& options);

}  // namespace mlcc::graph
