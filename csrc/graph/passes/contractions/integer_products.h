// integer_products: products of integers instead of products of the floats that stand for them.
//
// What it does: an operand of an f32 contraction may be (q - z) * s, of bytes q, zero points z and
// scales s. Where neither z nor s changes along the reduced axes, of either operand, the bytes are
// multiplied and added up, as integers, which is exact, and what z and s do is done to the sums:
//
//   sum (q - z) * s * (p - y) * t  =  s * t * (sum q * p - z * sum p - y * sum q + z * y * terms)
//
// Sums over a static operand alone are computed once. Left alone are products whose sums might
// leave i32, operands that are both new with each call, and targets that multiply no bytes.
//
//   %0: f32[8, 64] = cast %q
//   %1: f32[8, 64] = mul %0, %s
//   %2: f32[64, 40] = cast %w                                          %w is static
//   %3: f32[8, 40] = contract %1, %2 {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}
//   =>
//   %0: i32[8, 40] = contract %q, %w {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}
//   %1: f32[8, 40] = cast %0
//   %3: f32[8, 40] = mul %1, %s
//
// Requires a verified graph, and PassOptions::tiles. Runs after constants are folded and before
// operands are packed.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct IntegerProductsOptions : PassOptions {};

bool integer_products(Graph& graph, const IntegerProductsOptions& options);

}  // namespace mlcc::graph
