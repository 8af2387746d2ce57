// row_sums: products of few rows with a matrix that changes as sums along its rows instead of
// calls.
//
// What it does: calls of products (graph/passes/contractions/contractions.h) become pointwise
// products and their sums, where tiles would have to copy the matrix first: its terms lie side by
// side, it changes with each call, and there are few rows to multiply it with, or it is a single
// column.
//
//   %0: f32[64, 100] = permute %w {dims = [1, 0]}
//   %1: f32[2, 100] = extern "aten.mm.default"(%x, %0)
//   =>
//   %1: f32[2, 1, 64] = reshape %x
//   %2: f32[1, 100, 64] = reshape %w
//   %3: f32[2, 100, 64] = mul %1, %2
//   %4: f32[2, 100] = sum %3 {dims = [2]}
//
// Requires a verified graph, and PassOptions::tiles where code for products is wanted. Runs behind
// what looks for products. Keeps dtypes, shapes and strides; leaves values without users to dce.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct RowSumsOptions : PassOptions {};

bool row_sums(Graph& graph, const RowSumsOptions& options);

}  // namespace mlcc::graph
