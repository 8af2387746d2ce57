// What a node does beside computing its results.
#pragma once

#include "graph/graph.h"

namespace mlcc::graph {

// The same operands and attributes give the same results, and nothing else happens.
bool is_pure(const Node& node);
// Writes into memory that other values may lie in.
bool writes_memory(const Node& node);
// Must stay, used or not: it writes, draws random numbers (later draws would change) or has other
// effects.
bool has_effects(const Node& node);

}  // namespace mlcc::graph
