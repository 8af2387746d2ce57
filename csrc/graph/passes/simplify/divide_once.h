// divide_once: one division a row, where a softmax divides each of its elements by their sum.
//
// What it does: a quotient of exponentials below the largest of a row by their sum becomes a
// product with the sum's reciprocal. A division takes several times as long as a product.
//
//   %0: f32[s0, 1] = max %x {dims = [1], keepdim = true}
//   %1: f32[s0, 9] = sub %x, %0
//   %2: f32[s0, 9] = exp %1
//   %3: f32[s0, 1] = sum %2 {dims = [1], keepdim = true}
//   %4: f32[s0, 9] = div %2, %3     =>     %4: f32[s0, 1] = reciprocal %3
//                                          %5: f32[s0, 9] = mul %2, %4
//
// Requires a verified graph. Adds one rounding to results that two functions have rounded. Such a
// sum is 1 at least (or NaN), so its reciprocal never overflows; any other quotient stays exact.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct DivideOnceOptions : PassOptions {};

bool divide_once(Graph& graph, const DivideOnceOptions& options);

}  // namespace mlcc::graph
