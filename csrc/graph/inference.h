// The type of a node's result, and whether its operands fit: one place for the builder, the parser
// and the verifier.
#pragma once

#include <span>
#include <string_view>

#include "graph/graph.h"

namespace mlcc::graph {

// A node that is to be made, or is to be checked.
struct NodeDraft {
  Op op;
  std::span<Value* const> operands;
  const AttrList& attrs;
  // What the op cannot know from its operands is taken from here: the dtype of cast, full and iota,
  // the shape of expand, reshape, full and contract, whose dtype, the length of a slice and of an
  // iota, the device of full, iota and size_value. The rest is not looked at.
  const TensorType& declared;
  std::string_view name;  // of the result, for messages: "4" gives `add %4: ...`
};

// Dtype, shape and device of the result; its strides are left empty. Throws Error "<op> %<name>:
// <what does not fit>". For all ops with one tensor result, that is all but extern and size_result.
TensorType infer(const NodeDraft& draft);

// Whether two values of these types hold the same elements in the same places: dtype, shape and
// device, strides apart.
bool is_same_type(const TensorType& a, const TensorType& b);

// Row-major strides as plain products of sizes: those of contiguous_strides, which counts a size of
// 0 as 1, wherever there is an element.
std::vector<SymExpr> dense_strides(const std::vector<SymExpr>& shape);

// Makes strides that say "row-major dense" empty, so that equal layouts are equal values; checks
// their number.
TensorType normalize(TensorType type);

// Whether both products are surely different numbers.
bool have_different_products(const std::vector<SymExpr>& a, const std::vector<SymExpr>& b);

}  // namespace mlcc::graph
