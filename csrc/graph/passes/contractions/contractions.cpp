#include "graph/passes/contractions/contractions.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "graph/arguments.h"
#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/passes/layout/pack_operands.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// A call that is a product of two operands of the same rank, 2 or 3, perhaps with a sum.
struct ProductCall {
  std::string_view name;
  size_t first;  // operand of the product; what is added stands before it
  size_t rank;   // of its operands
};
constexpr ProductCall kCalls[] = {
    {"aten._int_mm.default", 0, 2}, {"aten.mm.default", 0, 2},      {"aten.bmm.default", 0, 3},
    {"aten.addmm.default", 1, 2},   {"aten.baddbmm.default", 1, 3},
};

const ProductCall* call_of(const Node& node) {
  if (node.op() != Op::kExtern) return nullptr;
  for (const ProductCall& call : kCalls)
    if (call.name == node.extern_call().name) return &call;
  return nullptr;
}

}  // namespace

bool is_product_call(const Node& node) { return call_of(node) != nullptr; }

namespace {

// beta and alpha; nothing where they are no numbers.
std::optional<double> factor(const ExternCall& call, std::string_view name) {
  for (const auto& [key, argument] : call.kwargs)
    if (key == name) return number_of(argument);
  return 1;
}

bool has_other_kwargs(const ExternCall& call) {
  return std::any_of(call.kwargs.begin(), call.kwargs.end(), [](const auto& argument) {
    return argument.first != "beta" && argument.first != "alpha";
  });
}

// Whether the call is one that torch takes: what it does not, it shall say itself.
bool is_well_formed(const Node& node, const ProductCall& call) {
  const ExternCall& facts = node.extern_call();
  const size_t count = call.first + 2;
  if (node.operands().size() != count || facts.args.size() != count || node.results().size() != 1)
    return false;
  for (const Argument& argument : facts.args)
    if (!std::holds_alternative<ArgRef>(argument.value)) return false;
  for (const Value* operand : node.operands())
    if (operand->kind() != ValueKind::kTensor || is_foreign(operand->type().dtype)) return false;
  const Shape& lhs = node.operand(call.first)->type().shape;
  const Shape& rhs = node.operand(call.first + 1)->type().shape;
  if (lhs.size() != call.rank || rhs.size() != call.rank) return false;
  Shape shape = lhs;
  shape.back() = rhs.back();
  return lhs.back() == rhs[call.rank - 2] && (call.rank == 2 || lhs[0] == rhs[0]) &&
         node.result()->type().shape == shape;
}

Value* scaled(Graph& graph, Value* value, double by) {
  if (by == 1) return value;
  Value* number = graph.full({}, value->type().dtype, by, value->type().device);
  return graph.pointwise(Op::kMul, {value, number});
}

// Of matrices, or batches of them.
Product product_of(Value* lhs, Value* rhs) {
  const bool is_batch = lhs->type().shape.size() == 3;
  const auto axes = [&](std::vector<size_t> numbers) {
    Shape index;
    if (is_batch) index.push_back(SymExpr::symbol(axis_name(0)));
    for (const size_t number : numbers)
      index.push_back(SymExpr::symbol(axis_name(number + (is_batch ? 1 : 0))));
    return index;
  };
  return {lhs, rhs, axes({0, 2}), axes({2, 1}), {lhs->type().shape.back()}};
}

Value* product(Graph& graph, Value* lhs, Value* rhs, DType dtype) {
  Shape shape = lhs->type().shape;
  shape.back() = rhs->type().shape.back();
  const Product product = product_of(lhs, rhs);
  return graph.contract(lhs, rhs, product.lhs_index, product.rhs_index, product.reduced,
                        std::move(shape), dtype);
}

std::string_view reason_of(Worth worth) {
  return worth == Worth::kCall
             ? "its operands change with each call, and it has few rows or one column"
             : "its operands change with each call, and a library is likely or found to be faster";
}

}  // namespace

bool compute_call(const Rewriter& rewriter, const PassOptions& options, Node* node,
                  const std::function<Worth(Value* lhs, Value* rhs)>& worth,
                  const std::function<Value*(Value* lhs, Value* rhs, DType dtype)>& product) {
  const ProductCall& call = *call_of(*node);
  if (!is_well_formed(*node, call)) return rewriter.no_match(*node, "its arguments do not fit");
  const ExternCall& facts = node->extern_call();
  Value *lhs = node->operand(call.first), *rhs = node->operand(call.first + 1);
  const TensorType& type = node->result()->type();
  const auto accumulator = accumulator_dtype(lhs->type().dtype, rhs->type().dtype);
  if (type.device.kind != DeviceKind::kCpu) return rewriter.no_match(*node, "another device");
  const DType left = lhs->type().dtype, right = rhs->type().dtype;
  const bool is_one_dtype = left == right && left == type.dtype;
  // Of bytes _int_mm takes signed ones on the right alone.
  const bool is_wide =
      accumulator == type.dtype && (is_float(right) ? left == right : right == DType::kI8);
  if (!accumulator || !(is_one_dtype || is_wide))
    return rewriter.no_match(*node, "no code for its dtypes");
  if (options.has_library && options.tiles->columns(*accumulator) == 0)
    return rewriter.no_match(*node, "no vectors to compute it in");
  const auto alpha = factor(facts, "alpha"), beta = factor(facts, "beta");
  if (!alpha || !beta || has_other_kwargs(facts))
    return rewriter.no_match(*node, "a factor is not known");
  const auto is_whole = [](double number) { return number == std::trunc(number); };
  if (!is_float(*accumulator) && !(is_whole(*alpha) && is_whole(*beta)))
    return rewriter.no_match(*node, "a factor is no integer");
  // Eager does not look at operands that count nothing, and refuses a sum of two dtypes.
  if (*alpha == 0) return rewriter.no_match(*node, "nothing of the product counts");
  if (call.first == 1 && node->operand(0)->type().dtype != type.dtype)
    return rewriter.no_match(*node, "what is added has another dtype");
  const Worth found = worth(lhs, rhs);
  if (!options.wants_code(rewriter.graph(), *node, found))
    return rewriter.no_match(*node, reason_of(found));
  return rewriter.replace_by_new(node, [&] {
    Graph& graph = rewriter.graph();
    const bool is_sum = call.first == 1 && *beta != 0;
    const bool is_plain = !is_sum && *alpha == 1;
    Value* result = product(lhs, rhs, is_plain ? type.dtype : *accumulator);
    result = scaled(graph, result, *alpha);
    if (is_sum) {
      Value* added = graph.cast(node->operand(0), *accumulator);
      result = graph.pointwise(Op::kAdd, {result, scaled(graph, added, *beta)});
    }
    return graph.cast(result, type.dtype);
  });
}

namespace {

// `is_wanted`: also where few rows are multiplied with what changes in each call.
bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node, bool is_wanted) {
  Graph& graph = rewriter.graph();
  const auto worth = [&](Value* lhs, Value* rhs) {
    // A tile has more than one column.
    if (rhs->type().shape.back().equals_constant(1)) return Worth::kCall;
    return is_wanted ? Worth::kCode : worth_of_code(*lhs, *rhs, graph, *options.tiles);
  };
  return compute_call(rewriter, options, node, worth, [&](Value* lhs, Value* rhs, DType dtype) {
    return product(graph, lhs, rhs, dtype);
  });
}

}  // namespace

std::optional<Product> plain_product(const Node& node) {
  if (node.op() == Op::kContract)
    return Product{node.operand(0), node.operand(1), node.attr<Shape>("lhs"),
                   node.attr<Shape>("rhs"), node.attr<Shape>("reduced")};
  const ProductCall* call = call_of(node);
  if (call == nullptr || call->first != 0 || !is_well_formed(node, *call)) return std::nullopt;
  return product_of(node.operand(0), node.operand(1));
}

std::vector<Node*> products_below(std::vector<Value*> values) {
  std::vector<Node*> products;
  for (size_t i = 0; i < values.size(); ++i) {
    Node* node = values[i]->producer();
    const auto here = values.begin() + static_cast<ptrdiff_t>(i);
    if (node == nullptr || std::find(values.begin(), here, values[i]) != here) continue;
    if (node->op() == Op::kContract || is_product_call(*node))
      products.push_back(node);
    else if (is_single_index_map(node->op()) || op_info(node->op()).op_class == OpClass::kPointwise)
      values.insert(values.end(), node->operands().begin(), node->operands().end());
  }
  return products;
}

bool contract_call(Graph& graph, const PassOptions& options, Node* call) {
  return rewrite(Rewriter(graph, options), options, call, true);
}

bool contractions(Graph& graph, const ContractionOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_product_call(*node)) has_changed |= rewrite(rewriter, options, node, false);
  return has_changed;
}

}  // namespace mlcc::graph
