#include "fusion/planning.h"

#include <string>

namespace mlcc::fusion {

using Index = std::vector<SymExpr>;

Planning::Planning(const graph::Graph& graph, const FusionOptions& options, const SizeHint& hint)
    : graph(graph), options(options), hint(hint), nodes(graph.nodes()),
      assumptions(graph.assumptions()) {
  for (size_t i = 0; i < nodes.size(); ++i) order[nodes[i]] = static_cast<int>(i);
}

Assumptions Planning::domain_assumptions(const Index& domain) const {
  Assumptions known = assumptions;
  for (size_t d = 0; d < domain.size(); ++d) known.set_index(axis_name(d), domain[d]);
  return known;
}

}  // namespace mlcc::fusion
