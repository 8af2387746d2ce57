#include "graph/inverse_copy.h"

#include <utility>
#include <vector>

#include "graph/index_map.h"

namespace mlcc::graph {
namespace {

bool has_known_sizes(const Value& value) {
  return value.kind() == ValueKind::kTensor && are_constant(value.type().shape);
}

// What the node read, from `result`, which holds what it computed; null if that cannot be told.
Value* undo(const Node& node, Value* result, Graph& into) {
  const std::vector<SymExpr>& shape = node.operand(0)->type().shape;
  if (node.op() == Op::kCopy) return result;
  if (node.op() == Op::kReshape) return into.reshape(result, shape);
  if (node.op() == Op::kPermute)
    return into.permute(result, inverse_permutation(node.attr<std::vector<int64_t>>("dims")));
  if (node.op() != Op::kPad) return nullptr;
  const auto dim = node.attr<int64_t>("dim");
  const auto before = node.attr<int64_t>("before");
  const SymExpr& length = shape[static_cast<size_t>(dim)];
  const SymExpr& padded = node.result()->type().shape[static_cast<size_t>(dim)];
  if (before < 0 || before + *length.as_constant() > *padded.as_constant()) return nullptr;
  return into.slice(result, dim, SymExpr(before), length, 1);
}

}  // namespace

std::unique_ptr<Graph> inverse_of_copy(const Graph& graph) {
  if (graph.inputs().size() != 1 || graph.outputs().size() != 1) return nullptr;
  const Value& output = *graph.outputs()[0];
  const Value& input = *graph.inputs()[0];
  auto inverse = std::make_unique<Graph>(graph.name());
  Value* value = inverse->add_input("x", output.type());
  const Value* place = &output;
  for (; place->producer() != nullptr; place = place->producer()->operand(0)) {
    const Node& node = *place->producer();
    if (node.operands().size() != 1 || !has_known_sizes(*place) ||
        !has_known_sizes(*node.operand(0)))
      return nullptr;
    value = undo(node, value, *inverse);
    if (value == nullptr) return nullptr;
  }
  if (place != &input) return nullptr;
  Value* result = inverse->pointwise(Op::kCopy, {value});
  inverse->set_strides(result, input.type().strides);
  inverse->set_outputs({result});
  return inverse;
}

}  // namespace mlcc::graph
