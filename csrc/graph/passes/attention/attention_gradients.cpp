#include "graph/passes/attention/attention_gradients.h"

#include <limits>
#include <optional>
#include <vector>

#include "graph/arguments.h"
#include "graph/attention_call.h"
#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/passes/contractions/contractions.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// The figures behind these: docs/decisions/0026-attention.md.

// Queries for which keys and values are worth being packed.
constexpr int64_t kFewestQueries = 64;
// Below so many a library is faster on some machines.
constexpr int64_t kQueriesInDoubt = 256;
constexpr double kProductsOfGradients = 5;  // of matrices

struct GradientCall {
  AttentionCall attention;
  Value *of_means, *means, *norms;
};

std::optional<GradientCall> read_call(const Node& node) {
  auto attention = read_attention_call(node, 1, 6);
  if (!attention || node.results().size() != 3) return {};
  const auto& args = node.extern_call().args;
  if (args.size() < 6) return {};
  GradientCall call{*attention, operand_of(node, args[0]), operand_of(node, args[4]),
                    operand_of(node, args[5])};
  if (call.of_means == nullptr || call.means == nullptr || call.norms == nullptr) return {};
  const Shape &q = attention->queries->type().shape, &k = attention->keys->type().shape;
  const SymExpr& columns = attention->values->type().shape[3];
  const Shape means = {q[0], q[1], q[2], columns};
  const bool fits = call.means->type().shape == means && call.of_means->type().shape == means &&
                    call.norms->type().shape == Shape{q[0], q[1], q[2]};
  const auto group = group_of_heads(q[1], k[1]);
  if (!fits || !group) return {};
  call.attention.group = *group;
  return call;
}

// Keys or values that several heads share, as if each had its own.
Value* for_each_head(Graph& graph, Value* shared, int64_t group) {
  if (group == 1) return shared;
  Shape shape = shared->type().shape;
  const SymExpr heads = shape[1] * group;
  shape.insert(shape.begin() + 2, SymExpr(1));
  Value* value = graph.reshape(shared, shape);
  shape[2] = group;
  value = graph.expand(value, shape);
  shape.erase(shape.begin() + 2);
  shape[1] = heads;
  return graph.reshape(value, std::move(shape));
}

// Of rows of one side with rows of the other, over their width.
Value* products(Graph& graph, Value* rows, Value* columns) {
  const auto axes = [](size_t row, size_t width) {
    return Shape{SymExpr::symbol(axis_name(0)), SymExpr::symbol(axis_name(1)),
                 SymExpr::symbol(axis_name(row)), SymExpr::symbol(axis_name(width))};
  };
  Shape shape = rows->type().shape;
  const SymExpr width = shape[3];
  shape[3] = columns->type().shape[2];
  return graph.contract(rows, columns, axes(2, 4), axes(3, 4), {width}, std::move(shape),
                        rows->type().dtype);
}

// A part of the result of attend_gradients, [batch, rows, heads, width], as torch sees it: added up
// over `group` heads that share rows.
Value* part_of(Graph& graph, Value* all, SymExpr& begin, const TensorType& type, int64_t group) {
  const Shape& shape = type.shape;
  const SymExpr length = product(shape) * group;
  Value* part = graph.slice(all, 0, begin, length, 1);
  begin = begin + length;
  if (group > 1) {
    part = graph.reshape(part, {shape[0], shape[2], shape[1], group, shape[3]});
    part = graph.reduce(Op::kSum, part, {3}, false);
  } else {
    part = graph.reshape(part, {shape[0], shape[2], shape[1], shape[3]});
  }
  return graph.cast(graph.permute(part, {0, 2, 1, 3}), type.dtype);
}

std::vector<Value*> build(Graph& graph, const GradientCall& call, const Node& node,
                          DType accumulator) {
  const auto prepared = [&](Value* value) {
    return with_dense_rows(graph, graph.cast(value, accumulator));
  };
  const int64_t group = call.attention.group;
  Value *queries = prepared(call.attention.queries), *of_means = prepared(call.of_means);
  Value* keys = for_each_head(graph, prepared(call.attention.keys), group);
  Value* values = for_each_head(graph, prepared(call.attention.values), group);
  const Device device = queries->type().device;
  const auto number = [&](double value) { return graph.full({}, accumulator, value, device); };
  const Shape& shape = call.attention.queries->type().shape;
  const Shape rows = {shape[0], shape[1], shape[2], 1};
  // Rows without keys have no weights.
  Value* norms = graph.cast(call.norms, accumulator);
  Value* is_empty =
      graph.pointwise(Op::kEq, {norms, number(-std::numeric_limits<double>::infinity())});
  norms = graph.reshape(graph.pointwise(Op::kWhere, {is_empty, number(0), norms}), rows);
  Value* scores =
      scaled_and_masked(graph, call.attention, products(graph, queries, keys), call.attention.mask);
  Value* weights = graph.pointwise(Op::kExp, {graph.pointwise(Op::kSub, {scores, norms})});
  Value* worth = graph.reduce(
      Op::kSum, graph.pointwise(Op::kMul, {of_means, graph.cast(call.means, accumulator)}), {3},
      true);
  Value* of_weights = graph.pointwise(Op::kSub, {products(graph, of_means, values), worth});
  Value* of_scores = graph.pointwise(Op::kMul, {weights, of_weights});
  of_scores = graph.pointwise(Op::kMul, {of_scores, number(call.attention.scale)});
  const SymExpr num_keys = keys->type().shape[2];
  const SymExpr limit = call.attention.is_causal
                            ? SymExpr::min(SymExpr::symbol(axis_name(2)) + 1, num_keys)
                            : num_keys;
  Value* all = graph.attend_gradients(weights, of_scores, of_means, queries, keys, {0, limit});
  SymExpr begin = 0;
  std::vector<Value*> gradients;
  for (const auto& result : node.results())
    gradients.push_back(part_of(graph, all, begin, result->type(), gradients.empty() ? 1 : group));
  return gradients;
}

bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  const auto call = read_call(*node);
  if (!call) return rewriter.no_match(*node, "its arguments do not fit");
  const AttentionCall& attention = call->attention;
  const auto reason = refusal(attention, {call->of_means, call->means}, *options.tiles);
  if (!reason.empty()) return rewriter.no_match(*node, reason);
  const TensorType& type = attention.queries->type();
  const int64_t rows = rewriter.graph().expected(type.shape[2]);
  if (rows < kFewestQueries)
    return rewriter.no_match(*node, "few queries share what would be packed");
  const double products =
      kProductsOfGradients * static_cast<double>(rewriter.graph().expected(
                                 product(type.shape) * attention.keys->type().shape[2]));
  const bool is_in_doubt = rows < kQueriesInDoubt && products <= kMostProductsInDoubt;
  const Worth worth = is_in_doubt ? Worth::kLikelyCode : Worth::kCode;
  if (!options.wants_code(rewriter.graph(), *node, worth))
    return rewriter.no_match(*node, "a library is likely or found to be faster");
  const DType accumulator = *accumulator_dtype(type.dtype, type.dtype);
  return rewriter.replace_all_by_new(
      node, [&] { return build(rewriter.graph(), *call, *node, accumulator); });
}

// Of a node whose weights and gradients of scores are computed from calls.
bool contract_scores(Graph& graph, const PassOptions& options, const Node& node) {
  bool has_changed = false;
  for (Node* product : products_below({node.operand(0), node.operand(1)}))
    if (is_product_call(*product)) has_changed |= contract_call(graph, options, product);
  return has_changed;
}

}  // namespace

bool is_attention_gradient_call(const Node& node) {
  return node.op() == Op::kExtern &&
         node.extern_call().name ==
             "aten._scaled_dot_product_flash_attention_for_cpu_backward.default";
}

bool attention_gradients(Graph& graph, const AttentionGradientOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_attention_gradient_call(*node))
      has_changed |= rewrite(rewriter, options, node);
    else if (node->op() == Op::kAttendGradients)
      has_changed |= contract_scores(graph, options, *node);
  return has_changed;
}

}  // namespace mlcc::graph
