// Values as strided windows into values that exist in memory.
#pragma once

#include <optional>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

// Element i of the value is the base's memory at offset + sum(i[d] * strides[d]), in elements from
// the base's first one.
struct StridedView {
  Value* base;                   // no index map's result, or one that no strides can express
  std::vector<SymExpr> shape;    // of the value
  std::vector<SymExpr> strides;  // one per dimension, 0 where the value repeats an element
  SymExpr offset;
};

// Follows permute, expand, slice and reshape (where strides can express it) down to a value that
// must be materialized, and gives the window into it, computed from the base's own strides. flip,
// cat and impossible reshapes stop the walk: there the value is its own base. Nothing only for a
// size. Strides are plain products of sizes: where a size is 0 there is no element to address.
std::optional<StridedView> strided_view(Value* value);

// Whether neighbours along a dimension of a tensor lie side by side.
bool is_dense_along(Value& value, size_t dim);

}  // namespace mlcc::graph
