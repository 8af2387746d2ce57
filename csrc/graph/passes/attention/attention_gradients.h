// attention_gradients: gradients of attention as nodes of the graph.
//
// What it does: aten._scaled_dot_product_flash_attention_for_cpu_backward becomes the weights
// again, from a contraction of queries and keys and the forward call's logarithms of sums, the
// gradients of scores, from one of the means' gradients and values, and `attend_gradients` of both.
//
//   %0: f32[2, 4, 80, 64], .. = extern "aten._scaled_dot_product_flash_attention_for_cpu_backward
//                                       .default"(%g, %q, %k, %v, %means, %norms, 0.0, false)
//   =>
//   %0: f32[2, 4, 80, 96] = contract %q, %k ..          of which exp(.. - norms) are the weights
//   %1: f32[2, 4, 80, 96] = contract %g, %v ..          what each weight is worth
//   %2: f32[2, 4, 80, 1] = sum (%g * %means) ..         and their weighted mean, which is taken off
//   %3: f32[145408] = attend_gradients %weights, %of_scores, %g, %q, %k {range = [0, 96]}
//   %4: f32[2, 80, 4, 64] = reshape slice %3 ..
//   %5: f32[2, 4, 80, 64] = permute %4 ..
//
// Of an `attend_gradients` that is there, products which its scores are computed from become
// contractions. Elements of 16 bits become f32 first. Requires a verified graph, and
// PassOptions::tiles where code for contractions is wanted. Keeps dtypes, shapes and strides;
// leaves values without users to dce. Heads that share keys get copies of them, whose gradients are
// added up. Few queries stay with the call.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct AttentionGradientOptions : PassOptions {};

// Whether the node is a call that this pass knows.
bool is_attention_gradient_call(const Node& node);

bool attention_gradients(Graph& graph, const AttentionGradientOptions& options);

}  // namespace mlcc::graph
