#include "fusion/reads.h"

#include <cstddef>
#include <utility>

#include "fusion/node_kinds.h"
#include "fusion/scores.h"
#include "graph/attention.h"
#include "graph/strided_view.h"

namespace mlcc::fusion {

using graph::Access;
using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::Value;
using Index = std::vector<SymExpr>;

namespace {

void collect_readers(const FusionPlan& plan, const Value* value, bool through_inlined,
                     std::vector<const Node*>& readers) {
  for (const Node* user : value->users()) {
    const bool passes = (is_free(*user) && !plan.copied.count(user)) ||
                        (through_inlined && plan.inlined.count(user));
    if (passes)
      collect_readers(plan, user->result(), through_inlined, readers);
    else
      readers.push_back(user);
  }
}

// What one node reads from memory.
class LeafCollector {
 public:
  LeafCollector(const FusionPlan& plan, const Assumptions& assumptions)
      : plan_(plan), assumptions_(assumptions) {}

  std::vector<Access> collect(const Node& node, const Index& position) {
    if (plan_.copied.count(&node)) {
      if (graph::is_single_index_map(node.op())) {
        const Access access = graph::operand_access(node, position, assumptions_);
        collect_leaves(access.value, access.index);
      }
    } else if (is_reduction(node)) {
      collect_leaves(node.operand(0), position);
    } else if (is_indirect(node)) {
      collect_fetched(node, position);
    } else if (is_contraction(node)) {
      collect_whole(node);
    } else if (is_attention(node)) {
      for (const Access& read : scores_read(node, position)) collect_leaves(read.value, read.index);
      for (Value* operand : rows_read(node))
        leaves_.push_back({graph::strided_view(operand)->base, {}});
    } else if (is_update(node)) {  // where does not matter: it is alone
      for (Value* operand : node.operands())
        collect_leaves(operand, Index(operand->type().shape.size()));
    } else {
      for (size_t i = 0; i < node.operands().size(); ++i)
        collect_leaves(node.operand(i), operand_index(node, i, position));
    }
    return std::move(leaves_);
  }

 private:
  // The materialized values that evaluating `value` at `index` reads, with their indices.
  void collect_leaves(Value* value, const Index& index) {
    Access access = resolve_folded(value, index);
    const Node* producer = access.value->producer();
    if (producer == nullptr || !is_folded(plan_, *producer)) {
      leaves_.push_back(std::move(access));
      return;
    }
    if (!plan_.inlined.count(producer)) return;  // a constant
    if (is_indirect(*producer)) return collect_fetched(*producer, access.index);
    if (is_contraction(*producer)) return collect_whole(*producer);
    for (size_t i = 0; i < producer->operands().size(); ++i)
      collect_leaves(producer->operand(i), operand_index(*producer, i, access.index));
  }

  void collect_whole(const Node& node) {
    for (Value* operand : node.operands()) {
      Value* base = graph::strided_view(operand)->base;
      const Node* producer = base->producer();
      if (producer == nullptr || !is_folded(plan_, *producer))
        leaves_.push_back({base, {}});
      else
        collect_whole(*producer);  // a panel that the kernel computes
    }
  }

  // As graph::resolve, but stops at copies.
  Access resolve_folded(Value* value, Index index) const {
    Access access{value, std::move(index)};
    while (access.value->producer() != nullptr &&
           graph::is_single_index_map(access.value->producer()->op()) &&
           !plan_.copied.count(access.value->producer()))
      access = graph::operand_access(*access.value->producer(), access.index, assumptions_);
    return access;
  }

  // Where operand i of a pointwise op or cat is read for the result's element `index`.
  Index operand_index(const Node& node, size_t i, const Index& index) const {
    if (node.op() != Op::kCat && node.op() != Op::kPad)
      return graph::broadcast_index(node.operand(i)->type().shape, index);
    Index result = index;
    const int64_t dim = node.attr<int64_t>("dim");
    if (node.op() == Op::kPad) result[dim] = result[dim] - node.attr<int64_t>("before");
    for (size_t j = 0; j < i; ++j) result[dim] = result[dim] - node.operand(j)->type().shape[dim];
    return result;
  }

  // What a gather reads for the result's element `position`: its indices, and an element of operand
  // 0 of which no place is known along the indexed dimensions.
  void collect_fetched(const Node& node, const Index& position) {
    const bool is_take = node.op() == Op::kTake;
    const Index index = is_take ? take_index_position(node, position) : position;
    const auto operands = graph::index_operands(node);
    for (Value* operand : operands) collect_leaves(operand, index);
    const Node* producer = node.operand(0)->producer();
    if (producer == nullptr || !plan_.inlined.count(producer)) {
      leaves_.push_back({graph::strided_view(node.operand(0))->base, {}});
      return;
    }
    const auto dim = static_cast<std::ptrdiff_t>(node.attr<int64_t>("dim"));
    const auto length = static_cast<std::ptrdiff_t>(is_take ? index.size() : 1);
    Index at(position.begin(), position.begin() + dim);
    at.insert(at.end(), operands.size(), SymExpr::symbol("anywhere"));
    at.insert(at.end(), position.begin() + dim + length, position.end());
    collect_leaves(node.operand(0), at);
  }

  const FusionPlan& plan_;
  const Assumptions& assumptions_;
  std::vector<Access> leaves_;
};

}  // namespace

std::vector<const Node*> readers_of(const FusionPlan& plan, const Value* value) {
  std::vector<const Node*> readers;
  collect_readers(plan, value, false, readers);
  return readers;
}

std::vector<const Node*> readers_behind_inlined(const FusionPlan& plan, const Value* value) {
  std::vector<const Node*> readers;
  collect_readers(plan, value, true, readers);
  return readers;
}

std::vector<Access> leaves_of(const FusionPlan& plan, const Node& node, const Index& position,
                              const Assumptions& assumptions) {
  return LeafCollector(plan, assumptions).collect(node, position);
}

}  // namespace mlcc::fusion
