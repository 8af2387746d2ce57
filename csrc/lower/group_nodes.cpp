#include "lower/group_nodes.h"

#include <algorithm>

#include "graph/index_map.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using Index = std::vector<SymExpr>;

DType carried_dtype(DType element) {
  return element == DType::kF16 || element == DType::kBF16 ? DType::kF32 : element;
}

DType carried_dtype(const Node& reduction) {
  return carried_dtype(reduction.operand(0)->type().dtype);
}

SymExpr arg_dim_index(const Node& node, const Index& position) {
  if (node.op() != graph::Op::kArgMax && node.op() != graph::Op::kArgMin) return 0;
  return position[static_cast<size_t>(node.attr<std::vector<int64_t>>("dims").at(0))];
}

GroupNodes::GroupNodes(const fusion::FusionPlan& plan, const fusion::Group& group)
    : plan_(plan), group_(group) {
  for (const Node* node : group_.nodes) {
    int level = 0;
    for (const Value* source : sources_of(*node))
      level = std::max(level, level_of(source) + (is_reduction(*source->producer()) ? 1 : 0));
    levels_[node->result()] = level;
    last_level_ = std::max(last_level_, level);
  }
}

int GroupNodes::level_of(const Value* value) const {
  const auto found = levels_.find(value);
  return found == levels_.end() ? 0 : found->second;
}

void GroupNodes::collect_sources(const Value* value, std::set<const Value*>& sources) const {
  const Node* node = value->producer();
  if (node == nullptr) return;
  if (group_.placements.count(node)) {
    sources.insert(value);
    return;
  }
  const bool folded =
      (fusion::is_free(*node) && !plan_.copied.count(node)) || plan_.inlined.count(node);
  if (!folded) return;
  for (const Value* operand : node->operands()) collect_sources(operand, sources);
}

std::set<const Value*> GroupNodes::sources_of(const Node& node) const {
  std::set<const Value*> sources;
  for (const Value* operand : node.operands()) collect_sources(operand, sources);
  return sources;
}

bool GroupNodes::is_output(const Value* value) const {
  return std::find(group_.outputs.begin(), group_.outputs.end(), value) != group_.outputs.end();
}

Index GroupNodes::read_position(const Node& node, const Assumptions& assumptions) const {
  if (!is_reduction(node)) return position(node);
  const Index axes = fusion::axis_symbols(group_.domain.size());
  const Index& shape = node.operand(0)->type().shape;
  if (shape == group_.domain) return axes;
  return graph::reshape_index(axes, group_.domain, shape, assumptions);
}

std::vector<const Node*> GroupNodes::reductions() const {
  std::vector<const Node*> found;
  for (const Node* node : group_.nodes)
    if (is_reduction(*node)) found.push_back(node);
  return found;
}

}  // namespace mlcc::lower
