#include "graph/passes/contractions/narrow_products.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/attention.h"
#include "graph/contraction.h"
#include "graph/passes/layout/pack_operands.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Fewer products are computed sooner than their operands are cast.
constexpr int64_t kFewProducts = 16;

bool is_f32(const Value& value) { return value.type().dtype == DType::kF32; }

// Gradients of attention compute its weights again, in f32, and divide by norms of the forward
// pass: both are to be of the same scores.
bool has_gradients_of_attention(const Graph& graph) {
  const auto nodes = graph.nodes();
  return std::any_of(nodes.begin(), nodes.end(), [](const Node* node) {
    return is_score_norm(*node) || node->op() == Op::kAttendGradients;
  });
}

bool has_many_queries(const Node& attend, const Graph& graph) {
  const auto axes = attention_axes(attend);
  return axes && graph.expected(attend.result()->type().shape[axes->rows]) >= kRowsWorthWords;
}

bool narrow_contraction(const Rewriter& rewriter, Node* node, bool keeps_attention) {
  Graph& graph = rewriter.graph();
  Value *lhs = node->operand(0), *rhs = node->operand(1);
  const TensorType& type = node->result()->type();
  if (!is_f32(*lhs) || !is_f32(*rhs)) return rewriter.no_match(*node, "no operands of f32");
  const auto& reduced = node->attr<Shape>("reduced");
  if (graph.expected(product(reduced)) < kFewProducts)
    return rewriter.no_match(*node, "sums of few products");
  if (const Node* attend = attention_of_scores(*node)) {
    if (keeps_attention) return rewriter.no_match(*node, "a gradient computes weights again");
    if (!has_many_queries(*attend, graph)) return rewriter.no_match(*node, "few queries");
  } else if (!is_packed(*node, DType::kBF16, graph)) {
    return rewriter.no_match(*node, "operands change with each call, for few rows");
  }
  return rewriter.replace_by_new(node, [&] {
    Value* narrow_lhs = graph.cast(lhs, DType::kBF16);
    Value* narrow_rhs = graph.cast(rhs, DType::kBF16);
    return graph.contract(narrow_lhs, narrow_rhs, node->attr<Shape>("lhs"),
                          node->attr<Shape>("rhs"), reduced, type.shape, type.dtype);
  });
}

bool narrow_attention(const Rewriter& rewriter, Node* node, bool keeps_attention) {
  Graph& graph = rewriter.graph();
  Value* values = node->operand(1);
  const TensorType& type = node->result()->type();
  if (!is_f32(*values) || type.dtype != DType::kF32)
    return rewriter.no_match(*node, "no operands of f32");
  if (keeps_attention) return rewriter.no_match(*node, "a gradient computes weights again");
  if (!has_many_queries(*node, graph)) return rewriter.no_match(*node, "few queries");
  return rewriter.replace_by_new(node, [&] {
    return graph.attend(node->operand(0), graph.cast(values, DType::kBF16), factors_of(*node),
                        node->attr<Shape>("lhs"), node->attr<Shape>("rhs"),
                        node->attr<Shape>("reduced")[0], node->attr<Shape>("range"),
                        node->attr<bool>("empty_is_zero"), type.shape, type.dtype);
  });
}

}  // namespace

bool narrow_products(Graph& graph, const NarrowProductsOptions& options) {
  if (!options.tiles || !options.tiles->terms ||
      options.tiles->terms(DType::kBF16, DType::kBF16) == 1)
    return false;
  const Rewriter rewriter(graph, options);
  const bool keeps_attention = has_gradients_of_attention(graph);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract)
      has_changed |= narrow_contraction(rewriter, node, keeps_attention);
    else if (node->op() == Op::kAttend)
      has_changed |= narrow_attention(rewriter, node, keeps_attention);
  return has_changed;
}

}  // namespace mlcc::graph
