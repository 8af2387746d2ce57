// group_products: products of integers whose scales change along the sums, by groups of terms.
//
// What it does: an operand of an f32 contraction is a static matrix of bytes, zero points and
// scales of groups of terms, the other one bytes with scales of rows, or of the same groups. Terms
// of a group are multiplied and added up as integers, which is exact; groups are scaled and added
// up in f32 (contract_groups). The matrix is laid out as tiles read it, integers of four bits two
// to a byte, all of them unsigned, since instructions multiply such with signed ones.
//
//   sum over g of s[g] * (sum of q * (p - z))  =  sum over g of s[g] * (sum of q * p - z * sum of
//   q)
//
// A zero point that is one number is what the sums of groups start with. What zero points of
// groups, offsets and zero points of rows add up to is a product of its own, with one term for each
// group.
//
//   %0: f32[8, 2, 32] = cast %q
//   %1: f32[8, 2, 32] = mul %0, %s                                     %s: f32[8, 2, 1]
//   %2: f32[64, 2, 32] = cast %w                                       %w is static
//   %3: f32[64, 2, 32] = mul %2, %t                                    %t: f32[64, 2, 1]
//   (%1 and %3 reshaped to [8, 64] and [64, 64])
//   %4: f32[8, 64] = contract %1, %3 {lhs = [d0, d2], reduced = [64], rhs = [d1, d2]}
//   =>
//   %2: u8[2, 2, 8, 32, 4] = copy %1                                   %w + 128, in panels
//   %4: f32[2, 2, 32] = copy %3                                        %t, in panels
//   %6: i32[8, 2] = mul %5, -128                                       %5: sums of %q
//   %7: f32[8, 64] = contract_groups %q, %2, %s, %4, %6
//
// With PassOptions::quantizes_rows rows of floats become bytes, with scales of groups.
//
// Requires a verified graph, and PassOptions::tiles. Runs after integer_products and before
// operands are packed.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct GroupProductsOptions : PassOptions {};

bool group_products(Graph& graph, const GroupProductsOptions& options);

}  // namespace mlcc::graph
