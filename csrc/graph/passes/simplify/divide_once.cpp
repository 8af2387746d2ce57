#include "graph/passes/simplify/divide_once.h"

#include <cstdint>
#include <vector>

#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

const Node* producer(const Value& value, Op op) {
  const Node* node = value.producer();
  return node != nullptr && node->op() == op ? node : nullptr;
}

// Whether `value` is that reduction of `operand`, over the same dimensions as `like`.
bool is_reduction_like(const Value& value, Op op, const Value& operand, const Node& like) {
  using Dims = std::vector<int64_t>;
  const Node* node = producer(value, op);
  return node != nullptr && node->operand(0) == &operand && node->attr<bool>("keepdim") &&
         node->attr<Dims>("dims") == like.attr<Dims>("dims");
}

bool rewrite(const Rewriter& rewriter, Node* quotient) {
  Value* const exponential = quotient->operand(0);
  Value* const divisor = quotient->operand(1);
  const Node* exp = producer(*exponential, Op::kExp);
  const Node* sum = producer(*divisor, Op::kSum);
  if (exp == nullptr || sum == nullptr || sum->operand(0) != exponential)
    return rewriter.no_match(*quotient, "no exponentials by their sum");
  const Node* difference = producer(*exp->operand(0), Op::kSub);
  if (difference == nullptr || !sum->attr<bool>("keepdim") ||
      !is_reduction_like(*difference->operand(1), Op::kMax, *difference->operand(0), *sum))
    return rewriter.no_match(*quotient, "the exponents may be far below 0");
  Graph& graph = rewriter.graph();
  return rewriter.replace_by_new(quotient, [&] {
    Value* reciprocal = graph.pointwise(Op::kReciprocal, {divisor});
    return graph.pointwise(Op::kMul, {exponential, reciprocal});
  });
}

}  // namespace

bool divide_once(Graph& graph, const DivideOnceOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kDiv) has_changed |= rewrite(rewriter, node);
  return has_changed;
}

}  // namespace mlcc::graph
