// pack_operands: lays an operand of a contraction out as its tiles read it.
//
// What it does: of an operand along whose own axis tiles have their columns, a copy in panels of as
// many columns, the last one padded with zeros; in a panel the reduced axes lie outside of the
// columns. Where the operand is static the copy is made once and kept. Where an instruction adds up
// several products, as many terms lie side by side inside of the columns, the last ones padded
// with zeros too; so do keys of an attention's values. What attention reads in rows has their
// elements side by side. Keys of few queries stay as they are. An operand whose terms lie apart, as
// those of a transposed matrix, is copied for many columns.
//
//   %0: f32[8, 40] = contract %x, %w {lhs = [d0, d2], reduced = [3], rhs = [d2, d1]}
//   =>
//   %0: f32[3, 64] = pad %w ..
//   %1: f32[3, 2, 32] = reshape %0
//   %2: f32[2, 3, 32] = permute %1 {dims = [1, 0, 2]}
//   %3: f32[2, 3, 32] = copy %2
//   %4: .. = contract %x, %3 {lhs = [d0, d2], .., rhs = [floordiv(d1, 32), d2, mod(d1, 32)]}
//
// Requires a verified graph, and PassOptions::tiles. Keeps what the contraction computes. Runs
// last: canonicalize would merge the copy away.
#pragma once

#include "graph/passes/options.h"

namespace mlcc::graph {

struct PackOptions : PassOptions {};

// Queries from which on values of attention, several keys of which lie side by side, are copied.
constexpr int64_t kRowsWorthWords = 64;

bool pack_operands(Graph& graph, const PackOptions& options);

// Whether an operand of the contraction, were its elements of that dtype, is static or read by so
// many rows that a copy in each call is little of the work.
bool is_packed(const Node& contraction, DType dtype, const Graph& graph);

// What code for lhs @ rhs, two matrices or batches of them, with what packing costs in each call,
// is worth beside a library's.
Worth worth_of_code(Value& lhs, Value& rhs, const Graph& graph, const TileOptions& tiles);

}  // namespace mlcc::graph
