// attention: softmax-weighted means as nodes of the graph, from calls and from their parts.
//
// What it does: aten._scaled_dot_product_flash_attention_for_cpu becomes a contraction of queries
// and keys, pointwise ops that scale and mask its scores, `attend`, and `logsumexp` where the
// call's second result is used. A product of a softmax's result, which nothing else reads, becomes
// `attend` of that softmax's operand, and the product that the scores come from a contraction. What
// multiplies weights in between, as dropout does, is its third operand. Sums and largest scores
// that the graph hands out are norms behind it.
//
//   %0: f32[2, 4, 8, 64], %1: f32[2, 4, 8] =
//     extern "aten._scaled_dot_product_flash_attention_for_cpu.default"(%q, %k, %v)
//   =>
//   %0: f32[2, 4, 8, 8] = contract %q, %k {lhs = [d0, d1, d2, d4], ..}
//   %1: f32[] = full {value = 0.125}
//   %2: f32[2, 4, 8, 8] = mul %0, %1
//   %3: f32[2, 4, 8, 64] = attend %2, %v {.., range = [0, 8], ..}
//
// Requires a verified graph, and PassOptions::tiles where code for contractions is wanted. Queries
// that share keys (grouped heads) get an axis of their own. Keeps dtypes and shapes; values that
// nobody sees in memory may lie in another way afterwards. Erases what is left of a softmax that
// hands out numbers, and leaves other values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct AttentionOptions : PassOptions {};

// Whether the node is a call that this pass knows.
bool is_attention_call(const Node& node);

bool attention(Graph& graph, const AttentionOptions& options);

}  // namespace mlcc::graph
