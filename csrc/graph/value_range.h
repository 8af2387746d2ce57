// Between which numbers the elements of a tensor of integers lie.
#pragma once

#include <optional>

#include "graph/graph.h"
#include "types/interval.h"

namespace mlcc::graph {

// By the ops that compute the value, and by what is promised of inputs; at most what its dtype
// holds. Nothing for other dtypes than integers and booleans.
std::optional<SymRange> value_range(const Value& value);

}  // namespace mlcc::graph
