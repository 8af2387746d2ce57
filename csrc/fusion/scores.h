// Scores of attention: which nodes make them in the kernel that reads them, and where it reads.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_set>
#include <vector>

#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

struct ScoreRules {
  const Assumptions& assumptions;
  int64_t max_nodes;  // of those that make the scores of one node
  // Whether a value need not lie in memory.
  std::function<bool(const graph::Node&)> may_be_inlined;
  // Whether memory is written after the product and before what reads the scores.
  std::function<bool(const graph::Node& product, const graph::Node& reader)> is_written_between;
};

// The contractions that scores are computed from and what lies between them and the scores, where
// nothing else reads these, and each node that does could make them.
std::unordered_set<const graph::Node*> find_inlined_scores(const std::vector<graph::Node*>& nodes,
                                                           const ScoreRules& rules);

// Whether one node of attention alone reads a value, for several of the values that its kernel
// makes of scores: what dropout keeps, for weights and for gradients. `makes_part`: whether the
// kernel would make the value of a node.
bool is_read_by_one_attention(
    const graph::Node& node,
    const std::function<std::vector<const graph::Node*>(const graph::Node&)>& readers_of,
    const std::function<bool(const graph::Node&)>& makes_part);

// What a node whose axes stand at `position` reads of operands that lie over the axes of scores.
std::vector<graph::Access> scores_read(const graph::Node& attention,
                                       const std::vector<SymExpr>& position);

// Its other operands, which lie in memory: values, and what they get; queries and keys.
std::vector<graph::Value*> rows_read(const graph::Node& attention);

// The axes of a logsumexp as those of an attend that adds up the same exponentials; nothing where
// it does not.
std::optional<std::vector<SymExpr>> norm_axes(const graph::Node& norm, const graph::Node& attend);

}  // namespace mlcc::fusion
