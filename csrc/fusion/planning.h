// What the parts of planning share: the graph, what is asked for, and the plan as far as it is
// made.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"
#include "types/symbolic.h"

namespace mlcc::fusion {

struct Planning {
  Planning(const graph::Graph& graph, const FusionOptions& options, const SizeHint& hint);
  Planning(const Planning&) = delete;
  Planning& operator=(const Planning&) = delete;

  // Whether readers compute the node's result for themselves, as far as that is decided.
  bool folds(const graph::Node& node) const { return is_folded(plan, node); }
  // What is known of symbols where the axes of this domain are in bounds.
  Assumptions domain_assumptions(const std::vector<SymExpr>& domain) const;
  // Whether a value has so many bytes that kernels that walk over it take turns.
  bool is_large(int64_t bytes) const {
    return options.waves.of_value > 0 && bytes > options.waves.of_value;
  }

  const graph::Graph& graph;
  const FusionOptions& options;
  const SizeHint& hint;
  const std::vector<graph::Node*> nodes;              // in program order
  const Assumptions assumptions;                      // the graph's
  std::unordered_map<const graph::Node*, int> order;  // of each node in the program
  FusionPlan plan;
};

}  // namespace mlcc::fusion
