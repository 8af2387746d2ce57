#include "graph/passes/simplify/fold_constants.h"

#include "graph/constants.h"
#include "graph/index_map.h"
#include "graph/rewriter.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// + - * / neg of two numbers; 16-bit floats are computed in f32 as at run time.
std::optional<double> evaluate_float(Op op, double a, double b, DType dtype) {
  const bool is_double = dtype == DType::kF64;
  const auto compute = [&](auto x, auto y) -> std::optional<double> {
    if (op == Op::kAdd) return x + y;
    if (op == Op::kSub) return x - y;
    if (op == Op::kMul) return x * y;
    if (op == Op::kDiv) return x / y;
    if (op == Op::kNeg) return -x;
    return std::nullopt;
  };
  return is_double ? compute(a, b) : compute(static_cast<float>(a), static_cast<float>(b));
}

// The same of integers, modulo 2^64.
std::optional<int64_t> evaluate_integer(Op op, int64_t a, int64_t b) {
  const auto x = static_cast<uint64_t>(a);
  const auto y = static_cast<uint64_t>(b);
  if (op == Op::kAdd) return static_cast<int64_t>(x + y);
  if (op == Op::kSub) return static_cast<int64_t>(x - y);
  if (op == Op::kMul) return static_cast<int64_t>(x * y);
  if (op == Op::kNeg) return static_cast<int64_t>(0 - x);
  return std::nullopt;
}

std::optional<Constant> evaluate(const Node& node) {
  std::vector<Constant> operands;
  for (const Value* operand : node.operands()) {
    const auto constant = constant_of(*operand);
    if (!constant) return std::nullopt;
    operands.push_back(*constant);
  }
  const DType dtype = node.result()->type().dtype;
  if (node.op() == Op::kCast) return convert(operands[0], dtype);
  const Constant& a = operands.front();
  const Constant& b = operands.back();
  if (is_float(dtype)) {
    const auto result = evaluate_float(node.op(), a.real, b.real, dtype);
    return result ? convert({DType::kF64, *result, 0}, dtype) : std::nullopt;
  }
  const auto result = evaluate_integer(node.op(), a.integer, b.integer);
  return result ? convert({DType::kI64, 0, *result}, dtype) : std::nullopt;
}

bool is_foldable(Op op) {
  return op == Op::kCast || op == Op::kAdd || op == Op::kSub || op == Op::kMul || op == Op::kDiv ||
         op == Op::kNeg;
}

// The number that the node's result is everywhere.
std::optional<Constant> fold(const Node& node) {
  if (is_single_index_map(node.op())) return constant_of(*node.result());
  if (is_foldable(node.op())) return evaluate(node);
  if (node.op() != Op::kSizeValue) return std::nullopt;
  const auto size = node.attr<SymExpr>("size").as_constant();
  if (!size) return std::nullopt;
  return Constant{DType::kI64, 0, *size};
}

}  // namespace

bool fold_constants(Graph& graph, const FoldConstantsOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes()) {
    const auto constant = fold(*node);
    if (!constant || is_shared_view(graph, *node->result())) continue;
    const TensorType& type = node->result()->type();
    has_changed |= rewriter.replace_by_new(
        node, [&] { return build_full(graph, type.shape, *constant, type.device); });
  }
  return has_changed;
}

}  // namespace mlcc::graph
