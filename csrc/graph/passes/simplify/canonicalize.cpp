#include "graph/passes/simplify/canonicalize.h"

#include <algorithm>

#include "graph/constants.h"
#include "graph/inference.h"
#include "graph/rewriter.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using Dims = std::vector<int64_t>;

// A rule changes the graph and returns true, or says why it does not fit.
using Rule = bool (*)(const Rewriter&, Node*);

const std::vector<SymExpr>& shape_of(const Value* value) { return value->type().shape; }

// The producer of operand 0 if it is of this op and can be skipped: nobody writes into what it
// reads.
Node* skippable_producer(const Node* node, Op op) {
  Node* producer = node->operand(0)->producer();
  if (producer == nullptr || producer->op() != op) return nullptr;
  return is_written(*producer->operand(0)) ? nullptr : producer;
}

// ---- index maps

bool drop_same_shape(const Rewriter& rewriter, Node* node) {
  if (shape_of(node->operand(0)) != shape_of(node->result()))
    return rewriter.no_match(*node, "the shapes differ");
  return rewriter.replace_by(node, node->operand(0));
}

bool drop_identity_permute(const Rewriter& rewriter, Node* node) {
  const auto& dims = node->attr<Dims>("dims");
  for (size_t d = 0; d < dims.size(); ++d)
    if (dims[d] != static_cast<int64_t>(d)) return rewriter.no_match(*node, "a dimension moves");
  return rewriter.replace_by(node, node->operand(0));
}

bool drop_whole_slice(const Rewriter& rewriter, Node* node) {
  if (!node->attr<SymExpr>("start").equals_constant(0) || node->attr<int64_t>("step") != 1)
    return rewriter.no_match(*node, "it does not begin at 0 with step 1");
  return drop_same_shape(rewriter, node);
}

bool drop_idle_flip(const Rewriter& rewriter, Node* node) {
  for (const int64_t dim : node->attr<Dims>("dims"))
    if (!shape_of(node->result())[static_cast<size_t>(dim)].equals_constant(1))
      return rewriter.no_match(*node, "a dimension of more than one element is reversed");
  return rewriter.replace_by(node, node->operand(0));
}

bool drop_idle_padding(const Rewriter& rewriter, Node* node) {
  if (node->attr<int64_t>("before") != 0)
    return rewriter.no_match(*node, "elements stand before the operand");
  return drop_same_shape(rewriter, node);
}

bool drop_single_cat(const Rewriter& rewriter, Node* node) {
  if (node->operands().size() != 1) return rewriter.no_match(*node, "it joins several operands");
  return rewriter.replace_by(node, node->operand(0));
}

bool drop_empty_cat_operands(const Rewriter& rewriter, Node* node) {
  const auto dim = node->attr<int64_t>("dim");
  std::vector<Value*> kept;
  for (Value* operand : node->operands())
    if (!shape_of(operand)[static_cast<size_t>(dim)].equals_constant(0)) kept.push_back(operand);
  if (kept.empty() || kept.size() == node->operands().size())
    return rewriter.no_match(*node, "no operand to drop");
  return rewriter.replace_by_new(node, [&] { return rewriter.graph().cat(kept, dim); });
}

bool merge_permutes(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kPermute);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no permute");
  Dims dims;
  for (const int64_t dim : node->attr<Dims>("dims"))
    dims.push_back(first->attr<Dims>("dims")[static_cast<size_t>(dim)]);
  return rewriter.replace_by_new(node,
                                 [&] { return rewriter.graph().permute(first->operand(0), dims); });
}

bool merge_expands(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kExpand);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no expand");
  return rewriter.replace_by_new(
      node, [&] { return rewriter.graph().expand(first->operand(0), shape_of(node->result())); });
}

bool merge_reshapes(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kReshape);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no reshape");
  if (have_different_products(shape_of(first->operand(0)), shape_of(node->result())))
    return rewriter.no_match(*node, "the shapes are the same by a guard only");
  return rewriter.replace_by_new(
      node, [&] { return rewriter.graph().reshape(first->operand(0), shape_of(node->result())); });
}

bool merge_slices(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kSlice);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no slice");
  const auto dim = node->attr<int64_t>("dim");
  if (first->attr<int64_t>("dim") != dim)
    return rewriter.no_match(*node, "the operand is a slice of another dimension");
  const auto step = first->attr<int64_t>("step");
  const SymExpr start = first->attr<SymExpr>("start") + node->attr<SymExpr>("start") * step;
  const SymExpr& length = shape_of(node->result())[static_cast<size_t>(dim)];
  return rewriter.replace_by_new(node, [&] {
    return rewriter.graph().slice(first->operand(0), dim, start, length,
                                  step * node->attr<int64_t>("step"));
  });
}

bool merge_flips(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kFlip);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no flip");
  const auto& a = first->attr<Dims>("dims");
  const auto& b = node->attr<Dims>("dims");
  Dims dims;
  std::set_symmetric_difference(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(dims));
  if (dims.empty() && rewriter.replace_by(node, first->operand(0))) return true;
  return rewriter.replace_by_new(node,
                                 [&] { return rewriter.graph().flip(first->operand(0), dims); });
}

// ---- casts and copies

bool drop_same_dtype(const Rewriter& rewriter, Node* node) {
  if (node->operand(0)->type().dtype != node->result()->type().dtype)
    return rewriter.no_match(*node, "the dtypes differ");
  return rewriter.replace_by(node, node->operand(0));
}

// Whether every number of dtype `from`, NaN and infinities among them, is one of `to`.
bool is_exact(DType from, DType to) {
  if (from == to || from == DType::kBool) return true;
  if (is_float(from)) return is_float(to) && dtype_size(from) < dtype_size(to);
  if (is_integer(to)) {
    if (from == DType::kU8) return dtype_size(to) > 1;
    return to != DType::kU8 && dtype_size(from) <= dtype_size(to);
  }
  constexpr int64_t kDigitsOfFloat[] = {11, 8, 24, 53};  // f16, bf16, f32, f64
  const int64_t bits = 8 * dtype_size(from);
  return is_float(to) &&
         bits <= kDigitsOfFloat[static_cast<size_t>(to) - static_cast<size_t>(DType::kF16)];
}

// cast(cast(x)) is one cast if the first lost nothing, and none at all if the second leads back.
bool merge_casts(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, Op::kCast);
  if (first == nullptr) return rewriter.no_match(*node, "the operand is no cast");
  Value* source = first->operand(0);
  if (!is_exact(source->type().dtype, first->result()->type().dtype))
    return rewriter.no_match(*node, "the first cast rounds");
  const DType dtype = node->result()->type().dtype;
  if (source->type().dtype == dtype) return rewriter.replace_by(node, source);
  return rewriter.replace_by_new(node, [&] { return rewriter.graph().cast(source, dtype); });
}

bool drop_copy(const Rewriter& rewriter, Node* node) {
  return rewriter.replace_by(node, node->operand(0));
}

// ---- arithmetic

// Replaces the node by `value`, repeated where the node's result is larger.
bool replace_broadcast(const Rewriter& rewriter, Node* node, Value* value) {
  if (value->type().device != node->result()->type().device)
    return rewriter.no_match(*node, "the operand is a number on the host");
  if (shape_of(value) == shape_of(node->result())) return rewriter.replace_by(node, value);
  if (is_written(*value)) return rewriter.no_match(*node, "an extern call writes into the operand");
  return rewriter.replace_by_new(
      node, [&] { return rewriter.graph().expand(value, shape_of(node->result())); });
}

bool is_constant(const Node* node, size_t operand, int64_t number) {
  const auto constant = constant_of(*node->operand(operand));
  return constant && equals(*constant, number);
}

// x * 1, 1 * x
bool drop_times_one(const Rewriter& rewriter, Node* node) {
  for (const size_t i : {0, 1})
    if (is_constant(node, i, 1)) return replace_broadcast(rewriter, node, node->operand(1 - i));
  return rewriter.no_match(*node, "no operand is 1");
}

// x / 1
bool drop_by_one(const Rewriter& rewriter, Node* node) {
  if (!is_constant(node, 1, 1)) return rewriter.no_match(*node, "the divisor is not 1");
  return replace_broadcast(rewriter, node, node->operand(0));
}

// x + 0 of integers, x + -0.0 of floats
bool drop_plus_zero(const Rewriter& rewriter, Node* node) {
  for (const size_t i : {0, 1}) {
    const auto constant = constant_of(*node->operand(i));
    if (!constant) continue;
    if (is_float(constant->dtype) ? is_negative_zero(*constant) : constant->integer == 0)
      return replace_broadcast(rewriter, node, node->operand(1 - i));
  }
  return rewriter.no_match(*node, "no operand is the neutral element");
}

// x - 0
bool drop_minus_zero(const Rewriter& rewriter, Node* node) {
  if (!is_constant(node, 1, 0)) return rewriter.no_match(*node, "the subtrahend is not 0");
  return replace_broadcast(rewriter, node, node->operand(0));
}

// -(-x), !(!x)
bool drop_double(const Rewriter& rewriter, Node* node) {
  const Node* first = skippable_producer(node, node->op());
  if (first == nullptr) return rewriter.no_match(*node, "the operand is another op");
  return rewriter.replace_by(node, first->operand(0));
}

// x & true, x | false
bool drop_neutral_bool(const Rewriter& rewriter, Node* node) {
  const int64_t neutral = node->op() == Op::kLogicalAnd ? 1 : 0;
  for (const size_t i : {0, 1})
    if (is_constant(node, i, neutral))
      return replace_broadcast(rewriter, node, node->operand(1 - i));
  return rewriter.no_match(*node, "no operand is the neutral element");
}

bool decide_where(const Rewriter& rewriter, Node* node) {
  if (node->operand(1) == node->operand(2))
    return replace_broadcast(rewriter, node, node->operand(1));
  const auto condition = constant_of(*node->operand(0));
  if (!condition) return rewriter.no_match(*node, "the condition is not constant");
  return replace_broadcast(rewriter, node, node->operand(condition->integer != 0 ? 1 : 2));
}

struct RuleRow {
  Op op;
  Rule rule;
};

// Tried from top to bottom; what drops a node stands before what merges it with another.
constexpr RuleRow kRules[] = {
    {Op::kPermute, drop_identity_permute},
    {Op::kPermute, merge_permutes},
    {Op::kExpand, drop_same_shape},
    {Op::kExpand, merge_expands},
    {Op::kReshape, drop_same_shape},
    {Op::kReshape, merge_reshapes},
    {Op::kSlice, drop_whole_slice},
    {Op::kSlice, merge_slices},
    {Op::kFlip, drop_idle_flip},
    {Op::kFlip, merge_flips},
    {Op::kExtend, drop_idle_padding},
    {Op::kPad, drop_idle_padding},
    {Op::kCat, drop_single_cat},
    {Op::kCat, drop_empty_cat_operands},
    {Op::kCast, drop_same_dtype},
    {Op::kCast, merge_casts},
    {Op::kCopy, drop_copy},
    {Op::kRoundInteger, drop_copy},
    {Op::kMul, drop_times_one},
    {Op::kDiv, drop_by_one},
    {Op::kAdd, drop_plus_zero},
    {Op::kSub, drop_minus_zero},
    {Op::kNeg, drop_double},
    {Op::kNot, drop_double},
    {Op::kLogicalNot, drop_double},
    {Op::kLogicalAnd, drop_neutral_bool},
    {Op::kLogicalOr, drop_neutral_bool},
    {Op::kWhere, decide_where},
};

// Whether a rule took the node away.
bool rewrite(const Rewriter& rewriter, Node* node) {
  return std::any_of(std::begin(kRules), std::end(kRules), [&](const RuleRow& row) {
    return row.op == node->op() && row.rule(rewriter, node);
  });
}

}  // namespace

bool canonicalize(Graph& graph, const CanonicalizeOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  // Each rewrite takes a node away or makes a chain of index maps shorter, so this ends.
  for (bool goes_on = true; goes_on;) {
    goes_on = false;
    for (Node* node : graph.nodes()) goes_on |= rewrite(rewriter, node);
    has_changed |= goes_on;
  }
  return has_changed;
}

}  // namespace mlcc::graph
