// Products of the same rows that one kernel computes: projections to queries, keys and values, or
// the two of a gated layer. Their tiles stand at the same places, so what reads several of the
// results finds them there.
#pragma once

#include <unordered_map>
#include <vector>

#include "graph/graph.h"

namespace mlcc::fusion {

// Whether two contractions differ in the matrix alone that the same rows are multiplied with: both
// matrices are inputs of the graph, packed alike.
bool share_tiles(const graph::Node& contraction, const graph::Node& other);

// Whether products gain by it: they are of few rows, or what follows the first one and the last one
// reads both. Others of many rows are no faster than apart (decision 0031).
bool are_worth_joining(const std::vector<const graph::Node*>& products, int64_t rows);

// Whether pointwise ops behind one of the products read what other kernels compute from one of
// them: a gate of attention, say. They could follow that product, but not all of them. `order`: of
// nodes in the program.
bool meet_later(const std::vector<const graph::Node*>& products,
                const std::unordered_map<const graph::Node*, int>& order);

}  // namespace mlcc::fusion
