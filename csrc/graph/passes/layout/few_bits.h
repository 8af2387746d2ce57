// Panels of integers that lie so close together that two of them stand in one byte.
//
//   %q: i8[2, 1, 64, 32, 1] of -8..7   =>   %bytes: u8[2, 1, 64, 16, 1]
//
// The columns of a panel are cut into runs: value i of a byte belongs to run i, so that a kernel
// takes a vector of bytes apart by one shift and one mask for all of them.
#pragma once

#include <cstdint>
#include <optional>

#include "graph/graph.h"

namespace mlcc::graph {

// The lowest of the sixteen numbers among which integers are, by what computes them or is promised
// of them. Nothing where they need whole bytes.
std::optional<int64_t> lowest_of_few(const Value& value);

// The panels (PanelDims) as what is computed from a copy of them with two columns in a byte, in
// which the lowest number stands as 0.
Value* in_few_bits(Graph& graph, Value* panels, int64_t lowest);

// A copy of panels of numbers below 16 (of u8) with two columns in a byte: those of the second half
// of the columns, which are half as many then, in its upper bits.
Value* two_in_a_byte(Graph& graph, Value* panels);

}  // namespace mlcc::graph
