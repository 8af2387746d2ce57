// Floats that stand for bytes, (integers - zero) * scales + offset, wherever that comes from:
// casts, views, pads and any order of scales are seen through.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::graph {

// Bytes as a contraction may read them.
struct Integers {
  Value* bytes;                  // that they are made of
  std::function<Value*()> make;  // of views and pads of these
  Access access;                 // what `make` stands for
};

struct ZeroPoint {
  std::optional<int64_t> number;  // everywhere
  Access access;                  // else integers, which bytes hold
};

// What an operand of a contraction stands for; indices are over the contraction's axes.
struct Dequantized {
  Integers integers;
  std::optional<ZeroPoint> zero;
  std::vector<Access> scales;    // of floats
  std::optional<Access> offset;  // of floats

  bool has_zero() const { return zero && zero->number != 0; }
};

// Of an operand of f32; if it `drops_rounding` also of one of bf16 or f16, whose steps are then
// taken as if they did not round. `make` of what it reads refers to the graph.
std::optional<Dequantized> read_dequantized(const Node& contraction, size_t operand, Graph& graph,
                                            bool drops_rounding = false);

// The axis of a contraction that an index is, if it is one.
std::optional<size_t> axis_of(const SymExpr& index);

// Whether dimensions along which an axis goes have its extent: no slice of more.
bool are_read_whole(const Access& access, const std::vector<SymExpr>& extents);

// Whether it may be laid beside the result: each of its dimensions is one of the result's `rank`
// axes, or has one element.
bool is_outside(const Access& access, const std::vector<SymExpr>& extents, size_t rank);

// Such a value with its dimensions where the result has them.
Value* beside_result(Graph& graph, const Access& access, size_t rank);

// Of values that broadcast, from left to right; null: there are none.
Value* product_of(Graph& graph, const std::vector<Value*>& factors);

}  // namespace mlcc::graph
