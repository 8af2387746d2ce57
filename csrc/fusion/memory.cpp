#include "fusion/memory.h"

#include <algorithm>

#include "fusion/node_kinds.h"
#include "fusion/reads.h"
#include "fusion/scores.h"
#include "graph/attention.h"
#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/strided_view.h"

namespace mlcc::fusion {

using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::Value;

namespace {

void require(Planning& planning, Value* value) {
  if (value->kind() != graph::ValueKind::kTensor) return;
  Value* base = graph::strided_view(value)->base;
  if (planning.plan.required.insert(base).second && base->producer() != nullptr &&
      is_free(*base->producer()))
    planning.plan.copied.insert(base->producer());
}

void find_required(Planning& planning) {
  for (Value* output : planning.graph.outputs()) require(planning, output);
  for (const Node* node : planning.nodes) {
    if (node->op() == Op::kExtern || is_contraction(*node))
      for (size_t i = 0; i < node->operands().size(); ++i)
        if (!graph::is_computed_in_panels(*node, i)) require(planning, node->operand(i));
    if (is_attention(*node))
      for (Value* operand : rows_read(*node)) require(planning, operand);
    if (is_indirect(*node) && !is_taken(*node->operand(0))) require(planning, node->operand(0));
  }
}

bool is_view(const Value& value) {
  return value.producer() != nullptr && graph::is_single_index_map(value.producer()->op());
}

// A number of the host beside tensors of another device is computed where it is read if nothing
// but single elements stands behind it; else the host computes it.
void find_crossings(Planning& planning) {
  for (const Node* node : planning.nodes) {
    if (node->op() == Op::kExtern) continue;
    for (const Value* operand : node->operands())
      if (is_read_elsewhere(*operand, *node) && is_view(*operand) && !is_cheap_number(*operand))
        planning.plan.copied.insert(operand->producer());
  }
}

// A view of memory that is written before the view is read is copied where it stands.
void find_changed_views(Planning& planning, const Writes& writes) {
  if (writes.are_none()) return;
  for (const Node* node : planning.nodes)
    if (graph::is_single_index_map(node->op()) && !is_write_window(*node) &&
        writes.change_before(*node, readers_of(planning.plan, node->result())))
      planning.plan.copied.insert(node);
}

}  // namespace

Writes::Writes(const Planning& planning) : planning_(planning) {
  for (const Node* node : planning.nodes) {
    if (node->op() != Op::kExtern) continue;
    for (const int i : node->extern_call().facts.mutates)
      writes_[graph::strided_view(node->operand(i))->base].push_back(planning.order.at(node));
  }
}

bool Writes::change_before(const Node& node, const std::vector<const Node*>& readers) const {
  if (writes_.empty()) return false;
  int last = 0;
  for (const Node* reader : readers) last = std::max(last, planning_.order.at(reader));
  return std::any_of(node.operands().begin(), node.operands().end(), [&](const Value* operand) {
    return is_written_between(operand, planning_.order.at(&node), last);
  });
}

bool Writes::is_written_between(const Value* value, int begin, int end) const {
  const Node* producer = value->producer();
  if (producer != nullptr && planning_.folds(*producer))
    return std::any_of(
        producer->operands().begin(), producer->operands().end(),
        [&](const Value* operand) { return is_written_between(operand, begin, end); });
  const auto found = writes_.find(value);
  return found != writes_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](int write) { return begin < write && write < end; });
}

bool Writes::are_between(const Node& node, const Node& reader) const {
  const int begin = planning_.order.at(&node), end = planning_.order.at(&reader);
  return std::any_of(writes_.begin(), writes_.end(), [&](const auto& write) {
    return std::any_of(write.second.begin(), write.second.end(),
                       [&](int at) { return begin < at && at < end; });
  });
}

void find_values_in_memory(Planning& planning, const Writes& writes) {
  find_required(planning);
  find_crossings(planning);
  find_changed_views(planning, writes);
}

}  // namespace mlcc::fusion
