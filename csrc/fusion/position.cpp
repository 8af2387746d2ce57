#include "fusion/position.h"

#include <algorithm>
#include <string>
#include <utility>

#include "fusion/node_kinds.h"
#include "fusion/scores.h"
#include "graph/attention.h"
#include "graph/contraction.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

using graph::Node;
using graph::Op;
using graph::OpClass;
using graph::Value;
using Index = std::vector<SymExpr>;

namespace {

// Places of nodes whose own axes are not those of the group in their order.
class SpecialPlace {
 public:
  SpecialPlace(const Planning& planning, const Group& group) : planning_(planning), group_(group) {}

  // Where a value of a contraction's kernel stands in what it is padded to: it is written there,
  // and the kernel fills the border by itself (lower/contractions/borders.h).
  std::optional<Index> padded_position(const Node& node) const {
    if (node.op() != Op::kPad || group_.nodes.empty() || !is_contraction(*group_.nodes.front()) ||
        group_.device.kind != DeviceKind::kCpu)
      return std::nullopt;
    const Value& inner = *node.operand(0);
    std::optional<Index> position = own_position(inner);
    if (!position && inner.producer() != nullptr && planning_.folds(*inner.producer()))
      position = padded_position(*inner.producer());
    const auto before = node.attr<int64_t>("before");
    const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    const SymExpr behind = node.result()->type().shape[dim] - inner.type().shape[dim] - before;
    const bool cuts = before < 0 || !planning_.assumptions.is_nonnegative(behind);
    if (!position || cuts) return std::nullopt;
    (*position)[dim] = (*position)[dim] + before;
    return position;
  }

  // Where a node stands that follows a contraction with its dimensions in another order.
  std::optional<Index> permuted_position(const Node& node) const {
    if (group_.nodes.empty() || !comes_in_tiles(*group_.nodes.front())) return std::nullopt;
    if (!is_inlinable(node) && !planning_.plan.copied.count(&node)) return std::nullopt;
    if (node.op() == Op::kCat || node.op() == Op::kPad) return std::nullopt;
    if (planning_.plan.copied.count(&node)) return place_of_permuted(node.result(), true);
    for (const Value* operand : node.operands())
      if (operand->type().shape == node.result()->type().shape)
        if (auto place = place_of_permuted(operand, false)) return place;
    return std::nullopt;
  }

 private:
  // Of a value of the group's, or of an inlined one that is computed from such at the same place.
  std::optional<Index> own_position(const Value& value) const {
    const Node* producer = value.producer();
    if (producer == nullptr) return std::nullopt;
    if (const auto own = group_.placements.find(producer); own != group_.placements.end())
      return own->second.position;
    if (!planning_.folds(*producer) ||
        graph::op_info(producer->op()).op_class != OpClass::kPointwise)
      return std::nullopt;
    for (const Value* operand : producer->operands())
      if (operand->type().shape == value.type().shape)
        if (auto position = own_position(*operand)) return position;
    return std::nullopt;
  }

  // Of a value that is a permuted one of the group's, or computed from such; `is_copied`: of one
  // that will lie in memory.
  std::optional<Index> place_of_permuted(const Value* value, bool is_copied) const {
    const Node* producer = value->producer();
    if (producer == nullptr || !(is_copied || planning_.folds(*producer))) return std::nullopt;
    if (producer->op() == Op::kPermute) {
      const Value* base = producer->operand(0);
      auto from = own_position(*base);
      if (!from) from = place_of_permuted(base, false);
      if (!from) return std::nullopt;
      Index place;
      for (const int64_t dim : producer->attr<std::vector<int64_t>>("dims"))
        place.push_back((*from)[static_cast<size_t>(dim)]);
      return place;
    }
    if (graph::op_info(producer->op()).op_class != OpClass::kPointwise) return std::nullopt;
    for (const Value* operand : producer->operands())
      if (operand->type().shape == value->type().shape)
        if (auto place = place_of_permuted(operand, false)) return place;
    return std::nullopt;
  }

  const Planning& planning_;
  const Group& group_;
};

// Of a logsumexp in the kernel of an attend that adds up the same exponentials.
std::optional<Join> join_of_norm(const Node& node, const Group& group) {
  const auto place = norm_axes(node, *group.nodes.front());
  if (!place) return std::nullopt;
  Join join;
  join.read_position = *place;
  join.reduced = group.reduced;
  join.placement = {{place->begin(), place->end() - 1}, true};
  return join;
}

// Completes the join of a contraction, in a domain of its own.
Join contract_at(const Node& node, Join join) {
  const size_t rank = num_kept_axes(node);
  for (size_t d = rank; d < join.reduced.size(); ++d) join.reduced[d] = true;
  join.placement.position.resize(rank);
  join.placement.per_row = true;
  return join;
}

// Completes the join of a reduction: which axes it reduces, and where its result stands.
std::optional<Join> reduce_at(const Node& node, Join join) {
  std::vector<bool> reduced(join.reduced.size(), false);
  const auto& dims = node.attr<std::vector<int64_t>>("dims");
  Index result;
  const Index& shape = node.operand(0)->type().shape;
  const bool keepdim = node.result()->type().shape.size() == shape.size();
  for (size_t d = 0; d < shape.size(); ++d) {
    const SymExpr& at = join.read_position[d];
    if (std::find(dims.begin(), dims.end(), static_cast<int64_t>(d)) == dims.end()) {
      result.push_back(at);
      continue;
    }
    if (keepdim) result.push_back(0);
    if (at.equals_constant(0)) continue;
    const auto symbol = at.as_symbol();
    if (!symbol) return std::nullopt;
    reduced[static_cast<size_t>(std::stoi(symbol->substr(1)))] = true;
  }
  for (size_t d = 0; d < reduced.size(); ++d)
    for (const SymExpr& at : result)
      if (reduced[d] && at.contains(axis_name(d))) return std::nullopt;
  if (has_any(join.reduced) && reduced != join.reduced) return std::nullopt;
  join.reduced = std::move(reduced);
  join.placement = {std::move(result), true};
  return join;
}

}  // namespace

bool has_any(const std::vector<bool>& axes) {
  return std::find(axes.begin(), axes.end(), true) != axes.end();
}

std::optional<Join> position_in(const Planning& planning, const Node& node, const Group& group,
                                const Assumptions& assumptions) {
  const Index& shape = iteration_shape(node);
  const Index axes = axis_symbols(group.domain.size());
  Join join;
  join.reduced = group.reduced;
  if (graph::is_score_norm(node) && !group.nodes.empty() && group.nodes.front() != &node)
    return join_of_norm(node, group);
  const SpecialPlace special(planning, group);
  if (auto padded = special.padded_position(node)) {
    join.read_position = *std::move(padded);
    join.placement = {join.read_position, true, true};
    return join;
  }
  if (const auto permuted = special.permuted_position(node)) {
    join.read_position = *permuted;
    join.placement.per_row = true;
  } else if (shape == group.domain) {
    join.read_position = axes;
  } else if (has_as_many(shape, group.domain)) {
    join.read_position = graph::reshape_index(axes, group.domain, shape, assumptions);
  } else if (group.has_reduction() && !is_reduction(node)) {
    Index kept, kept_axes;
    for (size_t d = 0; d < axes.size(); ++d) {
      if (group.reduced[d]) continue;
      kept.push_back(group.domain[d]);
      kept_axes.push_back(axes[d]);
    }
    if (shape != kept && !has_as_many(shape, kept)) return std::nullopt;
    join.read_position = graph::reshape_index(kept_axes, kept, shape, assumptions);
    join.placement.per_row = true;
  } else {
    return std::nullopt;
  }
  join.placement.position = join.read_position;
  if (comes_in_tiles(node)) return contract_at(node, std::move(join));
  return is_reduction(node) ? reduce_at(node, std::move(join)) : join;
}

}  // namespace mlcc::fusion
