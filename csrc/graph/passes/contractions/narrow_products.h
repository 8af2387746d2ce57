// narrow_products: products of f32 whose operands are rounded to bf16.
//
// What it does: where the caller allows it (torch.set_float32_matmul_precision("medium")), and
// instructions multiply and add up pairs of bf16, operands of f32 contractions are cast to bf16.
// Sums stay f32. So do operands that change with each call and would be packed for few rows, sums
// of few products, attention of few queries, and attention whose gradient computes its weights
// again. What contractions compute otherwise keeps its dtype and shape.
//
//   %0: f32[8, 40] = contract %x, %w {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}
//   =>
//   %0: bf16[8, 64] = cast %x
//   %1: bf16[64, 40] = cast %w        computed once, where %w is static
//   %2: f32[8, 40] = contract %0, %1 {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}
//
// Requires a verified graph, and PassOptions::tiles. Runs before convolutions become contractions:
// torch has another setting for these.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct NarrowProductsOptions : PassOptions {};

bool narrow_products(Graph& graph, const NarrowProductsOptions& options);

}  // namespace mlcc::graph
