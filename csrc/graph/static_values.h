// Values that depend on static inputs only, cut out of a graph, so that they can be kept across
// calls.
//
//   graph @linear(%x: f32[s0, 4], %w: f32[8, 4] static)       graph @linear(%x: f32[s0, 4],
//     %0: f32[4, 8] = permute %w {dims = [1, 0]}                  %w: f32[8, 4] static,
//     %1: f32[4, 8] = copy %0                             =>      %kept0: f32[4, 8])
//     %2: f32[s0, 8] = extern "aten.mm.default"(%x, %1)         %0: ... (%x, %kept0)
//     return %2                                                 return %0
//
//   and  graph @kept(%w0: f32[8, 4])
//     %0: f32[4, 8] = permute %w0 {dims = [1, 0]}
//     %1: f32[4, 8] = copy %0
//     return %1
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

struct StaticCone {
  std::unique_ptr<Graph> graph;  // its one output is the value; its inputs are not static
  std::vector<size_t> inputs;    // for each of its inputs the number of the one it stands for
};

// Each value that is computed from static inputs alone, and read by something that is not, becomes
// an input of `graph` behind the others: cone i computes input `n + i`, if there were n before.
// Cones that compute the same print the same text, whatever graph they come from.
//
// An input that an extern call writes into counts as any other, and so does one whose sizes are
// symbols or that is not on the CPU. Not cut: calls that are not pure or hold regions; what the
// caller gets, or whoever shares its memory with the caller or writes into it, so that nobody
// changes a kept value; views; and what costs next to nothing to compute and takes more memory than
// what it is computed from. There the cut lies below.
std::vector<StaticCone> cut_static_values(Graph& graph);

// The cone's value, computed in `into` at its insertion point from these values for the cone's
// inputs.
Value* compute_cone(const StaticCone& cone, Graph& into, const std::vector<Value*>& inputs);

// Whether the op stands in the way of one pass over memory as little as a cast does. A `copy` does
// not count: it asks for a tensor of its own.
bool is_cheap(Op op);

// Of the memory of a value; nothing where its size is a symbol.
std::optional<int64_t> bytes_of(const Value& value);
// Of all that such ops read which lead to the value, each once.
std::optional<int64_t> bytes_behind_cheap_ops(const Value& value);

// Whether a value is computed from static inputs and constants alone: unless it is a view, or one
// of those above, it is kept.
bool is_static_value(const Value& value);

}  // namespace mlcc::graph
