#include "fusion/node_kinds.h"

#include <algorithm>

#include "fusion/fusion.h"
#include "graph/attention.h"
#include "graph/contraction.h"
#include "graph/index_map.h"

namespace mlcc::fusion {

using graph::is_attention;
using graph::Node;
using graph::Op;
using graph::OpClass;
using graph::Value;
using Index = std::vector<SymExpr>;

bool may_fail(const Node& node) {
  const OpClass op_class = graph::op_info(node.op()).op_class;
  return op_class == OpClass::kGather || op_class == OpClass::kUpdate;
}

bool may_fail(const Group& group) {
  return std::any_of(group.nodes.begin(), group.nodes.end(),
                     [](const Node* node) { return may_fail(*node); });
}

bool is_reduction(const Node& node) {
  return graph::op_info(node.op()).op_class == OpClass::kReduction;
}

bool is_contraction(const Node& node) {
  return graph::op_info(node.op()).op_class == OpClass::kContraction;
}

bool is_free(const Node& node) {
  return graph::is_single_index_map(node.op()) || node.op() == Op::kFull ||
         node.op() == Op::kIota || node.op() == Op::kSizeValue;
}

bool is_folded(const FusionPlan& plan, const Node& node) {
  return (is_free(node) && !plan.copied.contains(&node)) || plan.inlined.contains(&node);
}

bool is_indirect(const Node& node) { return node.op() == Op::kTake || node.op() == Op::kGather; }

bool is_update(const Node& node) { return graph::op_info(node.op()).op_class == OpClass::kUpdate; }

bool copies_words(const Node& node) {
  constexpr int64_t kWordBytes = 4;
  const graph::TensorType& type = node.result()->type();
  if (node.op() != Op::kCopy || type.device.kind != DeviceKind::kCpu || type.shape.empty())
    return false;
  const int64_t bytes = dtype_size(type.dtype);
  return bytes < kWordBytes && type.dtype != DType::kBool &&
         type.shape.back().equals_constant(kWordBytes / bytes);
}

bool is_alone(const Node& node) {
  return is_update(node) || graph::op_info(node.op()).op_class == OpClass::kScan ||
         node.op() == Op::kAttendGradients || copies_words(node);
}

bool comes_in_tiles(const Node& node) { return is_contraction(node) || is_attention(node); }

size_t num_kept_axes(const Node& node) {
  if (node.op() == Op::kAttendGradients) return node.operand(0)->type().shape.size() - 2;
  return node.result()->type().shape.size();
}

bool is_inlinable(const Node& node) {
  return graph::op_info(node.op()).op_class == OpClass::kPointwise || node.op() == Op::kCat ||
         node.op() == Op::kPad;
}

Index iteration_shape(const Node& node) {
  if (is_update(node)) return node.operands().back()->type().shape;
  if (comes_in_tiles(node)) return graph::contraction_extents(node);
  return is_reduction(node) ? node.operand(0)->type().shape : node.result()->type().shape;
}

bool has_as_many(const Index& shape, const Index& other) {
  const SymExpr elements = product(shape);
  return elements == product(other) && !elements.equals_constant(0);
}

SymExpr points_of_read(const Node& reader, const Value& value) {
  if (is_attention(reader)) return product(value.type().shape);
  if (!is_update(reader)) return product(iteration_shape(reader));
  for (const Value* operand : reader.operands()) {
    const Value* at = operand;
    while (at != &value && at->producer() != nullptr &&
           graph::is_single_index_map(at->producer()->op()))
      at = at->producer()->operand(0);
    if (at == &value) return product(operand->type().shape);
  }
  return product(iteration_shape(reader));
}

bool is_read_elsewhere(const Value& value, const Node& reader) {
  return !reader.results().empty() && reader.result()->type().device != value.type().device;
}

bool is_write_window(const Node& view) {
  return std::any_of(view.result()->users().begin(), view.result()->users().end(),
                     [&](const Node* user) {
                       if (graph::is_single_index_map(user->op())) return is_write_window(*user);
                       if (user->op() != Op::kExtern) return false;
                       const std::vector<int>& mutates = user->extern_call().facts.mutates;
                       return std::any_of(mutates.begin(), mutates.end(),
                                          [&](int i) { return user->operand(i) == view.result(); });
                     });
}

Index take_index_position(const Node& node, const Index& position) {
  const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const size_t rank = node.operand(1)->type().shape.size();
  return Index(position.begin() + dim, position.begin() + dim + rank);
}

bool is_taken(const Value& value) {
  return value.producer() != nullptr && value.producer()->op() == Op::kTake;
}

bool is_only_taken(const Node& node) {
  if (node.op() != Op::kTake) return false;
  const std::vector<Node*>& users = node.result()->users();
  return std::all_of(users.begin(), users.end(), [&](const Node* user) {
    return is_indirect(*user) && user->operand(0) == node.result() &&
           user->operand(1) != node.result();
  });
}

namespace {

// Takes the ops off from how many there may be.
bool is_cheap_number(const Value& value, int64_t& ops) {
  const Node* producer = value.producer();
  if (producer == nullptr || !(is_free(*producer) || is_inlinable(*producer)))
    return product(value.type().shape).equals_constant(1);
  if (!is_free(*producer) && (producer->op() == Op::kPhilox || --ops < 0)) return false;
  return std::all_of(producer->operands().begin(), producer->operands().end(),
                     [&](const Value* operand) { return is_cheap_number(*operand, ops); });
}

}  // namespace

bool is_cheap_number(const Value& value) {
  static constexpr int64_t kCheapOps = 8;  // that every reader may compute for itself
  int64_t most_ops = kCheapOps;
  return is_cheap_number(value, most_ops);
}

}  // namespace mlcc::fusion
