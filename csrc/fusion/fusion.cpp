#include "fusion/fusion.h"

#include <algorithm>
#include <optional>
#include <unordered_set>
#include <utility>

#include "fusion/dependences.h"
#include "fusion/grouping.h"
#include "fusion/inlining.h"
#include "fusion/memory.h"
#include "fusion/plan_order.h"
#include "fusion/planning.h"
#include "fusion/recompute.h"

namespace mlcc::fusion {

using graph::Node;

std::vector<SymExpr> axis_symbols(size_t rank) {
  std::vector<SymExpr> axes;
  for (size_t d = 0; d < rank; ++d) axes.push_back(SymExpr::symbol(axis_name(d)));
  return axes;
}

bool Group::has_reduction() const {
  return std::find(reduced.begin(), reduced.end(), true) != reduced.end();
}

namespace {

// Computing values again saves little where it saves less than one part in so many of the bytes
// that kernels move.
constexpr int64_t kMuchTraffic = 8;

FusionPlan make_plan(const graph::Graph& graph, const FusionOptions& options, const SizeHint& hint,
                     const std::unordered_set<const Node*>& recomputed) {
  Planning planning(graph, options, hint);
  const Writes writes(planning);
  find_values_in_memory(planning, writes);
  Inlining inlining(planning, writes, recomputed);
  inlining.decide();
  Dependences dependences(planning);
  Grouping grouping(planning, writes, inlining, dependences);
  for (Node* node : planning.nodes) grouping.place(node);
  grouping.finish();
  order_units(planning, dependences.units(), writes);
  planning.plan.input_bytes = graph.read_input_bytes();
  return std::move(planning.plan);
}

}  // namespace

FusionPlan plan_fusion(const graph::Graph& graph, const FusionOptions& options) {
  const SizeHint hint = [&graph](std::string_view name) { return graph.size_hint(name); };
  FusionPlan plan = make_plan(graph, options, hint, {});
  if (!options.fuse || !options.ops_of || !options.recompute) return plan;
  const std::unordered_set<const Node*> recomputed = find_recomputed(plan, options, hint);
  if (recomputed.empty()) return plan;
  FusionPlan other = make_plan(graph, options, hint, recomputed);
  const std::optional<int64_t> before = bytes_moved(plan, hint), after = bytes_moved(other, hint);
  if (other.groups.size() > plan.groups.size() || !before || !after || *after >= *before)
    return plan;
  other.saves_little = *before - *after < *before / kMuchTraffic;
  return other;
}

}  // namespace mlcc::fusion
