#include "fusion/grouping.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "fusion/node_kinds.h"
#include "fusion/products.h"
#include "fusion/reads.h"
#include "graph/attention.h"
#include "support/error.h"
#include "support/result.h"

namespace mlcc::fusion {

using graph::Access;
using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::Value;
using Index = std::vector<SymExpr>;

void Grouping::place(Node* node) {
  if (node->op() == Op::kSizeResult || planning_.folds(*node)) return;
  if (node->op() == Op::kExtern) return dependences_.add_call(*node);
  if (planning_.options.fuse && graph::is_score_norm(*node) &&
      joins_any(node, attends_beside(*node)))
    return;
  if (planning_.options.fuse && is_contraction(*node) && joins_any(node, products_beside(*node)))
    return;
  if (planning_.options.fuse && !is_alone(*node) && !comes_in_tiles(*node)) {
    const Candidates candidates = candidate_groups(*node);
    for (const std::vector<int>& groups : {candidates.producers, candidates.siblings}) {
      if (joins_any(node, groups)) return;
      if (is_part_of_online(*node, groups)) return inlining_.inline_node(*node);
    }
  }
  begin_group(node);
}

void Grouping::begin_group(Node* node) {
  Group group;
  group.device = node->result()->type().device;
  group.domain = iteration_shape(*node);
  group.reduced.assign(group.domain.size(), false);
  std::optional<Join> join =
      position_in(planning_, *node, group, planning_.domain_assumptions(group.domain));
  MLCC_CHECK(join, "fusion: a node does not fit its own domain: ", graph::op_info(node->op()).text);
  plan_.groups.push_back(std::move(group));
  dependences_.add_kernel(*node);
  add_to_group(node, static_cast<int>(plan_.groups.size()) - 1, *std::move(join));
  if (comes_in_tiles(*node)) last_tiles_.push_back(static_cast<int>(plan_.groups.size()) - 1);
}

Grouping::Candidates Grouping::candidate_groups(const Node& node) const {
  std::set<int, std::greater<>> producers, siblings;
  std::vector<Access> leaves =
      leaves_of(plan_, node, Index(iteration_shape(node).size()), planning_.assumptions);
  const SymExpr points = product(iteration_shape(node));
  const std::vector<UnitState>& units = dependences_.units();
  for (const Access& leaf : leaves) {
    const int unit = dependences_.unit_of(leaf.value);
    if (unit >= 0 && units[unit].group >= 0) producers.insert(units[unit].group);
    const auto readers = readers_.find(leaf.value);
    if (readers == readers_.end()) continue;
    const bool reads_each_once = product(leaf.value->type().shape) == points;
    for (const int g : readers->second)
      if (reads_each_once || (is_indirect(node) && product(plan_.groups[g].domain) == points))
        siblings.insert(g);
  }
  Candidates candidates{{producers.begin(), producers.end()}, {}};
  for (const int g : siblings)
    if (!producers.count(g)) candidates.siblings.push_back(g);
  return candidates;
}

// Kernels of products of the same rows, the last ones before `node`: between distant ones values
// would wait for their readers.
std::vector<int> Grouping::products_beside(const Node& node) {
  const auto first_of = [this](int g) -> const Node& {
    return *plan_.groups[static_cast<size_t>(g)].nodes.front();
  };
  const auto reads_others = [&](int g) {
    return !is_contraction(first_of(g)) || first_of(g).operand(0) != node.operand(0);
  };
  if (std::any_of(last_tiles_.begin(), last_tiles_.end(), reads_others)) last_tiles_.clear();
  std::vector<int> groups;
  for (const int g : last_tiles_) {
    if (!share_tiles(first_of(g), node)) continue;
    std::vector<const Node*> products;
    for (const Node* one : plan_.groups[static_cast<size_t>(g)].nodes)
      if (is_contraction(*one)) products.push_back(one);
    products.push_back(&node);
    const SymExpr& rows = node.result()->type().shape.front();
    if (static_cast<int64_t>(products.size()) <= planning_.options.max_products &&
        are_worth_joining(products, rows.try_evaluate(planning_.hint).value_or(0)) &&
        !meet_later(products, planning_.order))
      groups.push_back(g);
  }
  return groups;
}

// Kernels of attends that read the same scores.
std::vector<int> Grouping::attends_beside(const Node& norm) const {
  std::vector<int> groups;
  for (const Node* user : norm.operand(0)->users())
    if (const auto group = plan_.group_of.find(user);
        user->op() == Op::kAttend && group != plan_.group_of.end())
      groups.push_back(group->second);
  return groups;
}

bool Grouping::joins_any(Node* node, const std::vector<int>& groups) {
  for (const int g : groups) {
    Result<Join> join = rules_.try_join(*node, g);
    if (join) {
      add_to_group(node, g, std::move(join).value());
      return true;
    }
    plan_.reasons.push_back(detail::join("%", node->result()->id(), " = ",
                                         graph::op_info(node->op()).text, " did not join kernel ",
                                         g, ": ", join.reason()));
  }
  return false;
}

// Whether a value that did not join a kernel of long rows makes up terms of a sum that will: each
// pass over a block of a row computes it anyway, and nothing need be written.
bool Grouping::is_part_of_online(const Node& node, const std::vector<int>& groups) const {
  if (!is_inlinable(node) || plan_.required.count(node.result())) return false;
  const std::vector<const Node*> readers = readers_of(plan_, node.result());
  if (writes_.change_before(node, readers) ||
      inlining_.inlined_nodes(node) > planning_.options.max_nodes)
    return false;
  return std::any_of(readers.begin(), readers.end(), [&](const Node* reader) {
    return is_reduction(*reader) && std::any_of(groups.begin(), groups.end(), [&](int g) {
             const Group& group = plan_.groups[static_cast<size_t>(g)];
             return group.has_reduction() && long_rows_.row_is_long(group, group.reduced) &&
                    long_rows_.joins_online(*reader, group, &node);
           });
  });
}

void Grouping::add_to_group(Node* node, int group_index, Join join) {
  Group& group = plan_.groups[group_index];
  const Assumptions assumptions = planning_.domain_assumptions(group.domain);
  const std::vector<Access> leaves = leaves_of(plan_, *node, join.read_position, assumptions);
  dependences_.add_node(dependences_.unit_of_group(group_index), *node, leaves,
                        inlining_.ops_with_inlined(*node));
  for (const Access& leaf : leaves) {
    std::vector<int>& readers = readers_[leaf.value];
    if (std::find(readers.begin(), readers.end(), group_index) == readers.end())
      readers.push_back(group_index);
  }
  group.nodes.push_back(node);
  group.reduced = std::move(join.reduced);
  group.placements[node] = std::move(join.placement);
  plan_.group_of[node] = group_index;
  if (is_reduction(*node))
    if (auto repair = long_rows_.repair_of(*node, group, assumptions))
      group.repairs[node] = *std::move(repair);
}

void Grouping::finish() {
  for (Group& group : plan_.groups) finish_group(group);
}

void Grouping::finish_group(Group& group) const {
  const Assumptions assumptions = planning_.domain_assumptions(group.domain);
  std::set<const Value*> seen;
  for (const Node* node : group.nodes) {
    Index position = group.placements.at(node).position;
    if (is_reduction(*node) || is_attention(*node)) {
      const std::optional<Join> join = position_in(planning_, *node, group, assumptions);
      MLCC_CHECK(join, "fusion: %", node->result()->id(), " does not fit its kernel any more");
      position = join->read_position;
    }
    for (const Access& leaf : leaves_of(plan_, *node, position, assumptions)) {
      const bool own =
          leaf.value->producer() != nullptr && group.placements.count(leaf.value->producer());
      if (!own && seen.insert(leaf.value).second) group.inputs.push_back(leaf.value);
    }
  }
  for (const Node* node : group.nodes) {
    Value* value = node->result();
    const std::vector<const Node*> readers = readers_behind_inlined(plan_, value);
    const bool read_elsewhere =
        std::any_of(readers.begin(), readers.end(),
                    [&](const Node* reader) { return !group.placements.count(reader); });
    // An update or scan that nobody reads writes its result all the same.
    if (plan_.required.count(value) || read_elsewhere || is_alone(*node))
      group.outputs.push_back(value);
  }
  for (const auto* values : {&group.inputs, &group.outputs})
    for (const Value* value : *values)
      group.ideal_bytes =
          group.ideal_bytes + product(value->type().shape) * dtype_size(value->type().dtype);
}

}  // namespace mlcc::fusion
