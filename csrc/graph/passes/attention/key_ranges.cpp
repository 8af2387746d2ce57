#include "graph/passes/attention/key_ranges.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/attention.h"
#include "graph/constants.h"
#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Index = std::vector<SymExpr>;

// How deep a mask is looked into.
constexpr int kMostLevels = 24;

// What is added to a place, so that no place leaves an i32.
constexpr int64_t kFarthest = int64_t{1} << 30;

double value_of(const Constant& constant) {
  return is_float(constant.dtype) ? constant.real : static_cast<double>(constant.integer);
}

// What a mask tells of the keys that a node of attention may see.
class MaskReader {
 public:
  explicit MaskReader(const Node& attention, Assumptions assumptions)
      : assumptions_(std::move(assumptions)), range_(attention.attr<Index>("range")) {
    const Index extents = contraction_extents(attention);
    for (size_t d = 0; d < extents.size(); ++d) assumptions_.set_index(axis_name(d), extents[d]);
    key_ = axis_name(extents.size() - 1);
    if (const auto axes = attention_axes(attention)) row_ = axis_name(axes->rows);
  }

  const Index& range() const { return range_; }
  bool has_keys_for_each_row() const { return assumptions_.is_less(range_[0], range_[1]); }

  // Narrows the range to where the value may be other than -inf.
  void read_scores(const Access& at, int level = 0) {
    const Node* node = at.value->producer();
    if (node == nullptr || level == kMostLevels) return;
    if (is_single_index_map(node->op()))
      return read_scores(operand_access(*node, at.index, assumptions_), level + 1);
    if (node->op() == Op::kCast && is_float(node->operand(0)->type().dtype))
      return read_scores({node->operand(0), at.index}, level + 1);
    if (node->op() == Op::kAdd) {
      for (Value* operand : node->operands()) read_scores(of_operand(operand, at), level + 1);
    } else if (node->op() == Op::kWhere) {
      read_choice(*node, at, level);
    }
  }

  // Of a `where`; true if the range says all that its condition says.
  bool read_choice(const Node& where, const Access& at, int level = 0) {
    for (const bool is_seen : {true, false}) {
      if (!is_lowest(*where.operand(is_seen ? 2 : 1))) continue;
      const bool is_all = require(of_operand(where.operand(0), at), is_seen, level + 1);
      read_scores(of_operand(where.operand(is_seen ? 1 : 2), at), level + 1);
      return is_all;
    }
    return false;
  }

 private:
  static Access of_operand(Value* operand, const Access& at) {
    return {operand, broadcast_index(operand->type().shape, at.index)};
  }

  // Only keys for which the condition is `truth` count; true if the range says so now.
  bool require(const Access& condition, bool truth, int level) {
    const Node* node = condition.value->producer();
    if (node == nullptr || level >= kMostLevels) return false;
    if (is_single_index_map(node->op()))
      return require(operand_access(*node, condition.index, assumptions_), truth, level + 1);
    const auto both = [&](bool of_each) {
      const bool left = require(of_operand(node->operand(0), condition), of_each, level + 1);
      return require(of_operand(node->operand(1), condition), of_each, level + 1) && left;
    };
    const Op op = node->op();
    if (op == Op::kNot || op == Op::kLogicalNot)
      return require({node->operand(0), condition.index}, !truth, level + 1);
    if (op == Op::kAnd || op == Op::kLogicalAnd) return truth && both(true);
    if (op == Op::kOr || op == Op::kLogicalOr) return !truth && both(false);
    if (op == Op::kWhere) return require_choice(*node, condition, truth, level);
    if (op == Op::kCast || op == Op::kEq || op == Op::kNe)
      return require_number(*node, condition, truth, level);
    return require_order(*node, condition, truth);
  }

  // Of where(c, a, b) among truths, as torch's `tril` makes it.
  bool require_choice(const Node& where, const Access& at, bool truth, int level) {
    for (const bool is_first : {true, false}) {
      const auto other = constant_of(*where.operand(is_first ? 2 : 1));
      if (!other || (other->integer != 0) == truth) continue;
      const bool is_known = require(of_operand(where.operand(0), at), is_first, level + 1);
      Value* chosen = where.operand(is_first ? 1 : 2);
      if (const auto constant = constant_of(*chosen))
        return is_known && (constant->integer != 0) == truth;
      return require(of_operand(chosen, at), truth, level + 1) && is_known;
    }
    return false;
  }

  // Of a mask in numbers: mask == 0, mask != 0, or a cast to truths.
  bool require_number(const Node& test, const Access& at, bool truth, int level) {
    Constant number{DType::kI64, 0, 0};
    if (test.op() == Op::kCast) {
      if (test.result()->type().dtype != DType::kBool) return false;
    } else if (const auto constant = constant_of(*test.operand(1))) {
      number = *constant;
      if (test.op() == Op::kEq) truth = !truth;  // whether it is another number
    } else {
      return false;
    }
    Access access = of_operand(test.operand(0), at);
    access = resolve(access.value, access.index, assumptions_);
    const Node* node = access.value->producer();
    if (node == nullptr) return false;
    const auto differs = [&](const Constant& one) { return value_of(one) != value_of(number); };
    if (node->op() == Op::kCast && node->operand(0)->type().dtype == DType::kBool) {
      const bool of_true = differs({DType::kI64, 1, 1}), of_false = differs({DType::kI64, 0, 0});
      return of_true != of_false &&
             require({node->operand(0), access.index}, of_true == truth, level + 1);
    }
    if (node->op() != Op::kWhere) return false;
    const auto first = constant_of(*node->operand(1)), second = constant_of(*node->operand(2));
    if (!first || !second || differs(*first) == differs(*second)) return false;
    return require(of_operand(node->operand(0), access), differs(*first) == truth, level + 1);
  }

  // Of a comparison of places.
  bool require_order(const Node& node, const Access& at, bool truth) {
    const bool is_less = node.op() == Op::kLt || node.op() == Op::kLe;
    if (!is_less && node.op() != Op::kGt && node.op() != Op::kGe) return false;
    const bool may_be_equal = (node.op() == Op::kLe || node.op() == Op::kGe) == truth;
    const auto left = place(of_operand(node.operand(0), at)),
               right = place(of_operand(node.operand(1), at));
    if (!left || !right) return false;
    const SymExpr difference = is_less == truth ? *right - *left : *left - *right;
    return narrow(may_be_equal ? difference : difference - 1);
  }

  // Only keys for which the expression is not below 0 count.
  bool narrow(const SymExpr& expression) {
    const auto linear = expression.linear_in(key_);
    if (!linear) return false;
    const bool is_first = linear->coefficient.equals_constant(1);
    if (!is_first && !linear->coefficient.equals_constant(-1)) return false;
    const SymExpr bound = is_first ? -linear->rest : linear->rest + 1;
    // Kernels ask for the bounds of a tile's first and last row.
    const auto over_rows = bound.linear_in(row_);
    const auto step = over_rows ? over_rows->coefficient.as_constant() : std::nullopt;
    if (!row_.empty() && (!step || *step < 0)) return false;
    SymExpr& known = range_[is_first ? 0 : 1];
    known =
        assumptions_.simplify(is_first ? SymExpr::max(known, bound) : SymExpr::min(known, bound));
    return true;
  }

  // An integer as an expression over axes. Narrow integers may wrap.
  std::optional<SymExpr> place(const Access& at, int level = 0) const {
    const DType dtype = at.value->type().dtype;
    const Node* node = at.value->producer();
    if (node == nullptr || level == kMostLevels || (dtype != DType::kI32 && dtype != DType::kI64))
      return {};
    if (const auto constant = constant_of(*at.value)) {
      if (std::abs(constant->integer) > kFarthest) return {};
      return SymExpr(constant->integer);
    }
    if (is_single_index_map(node->op()))
      return place(operand_access(*node, at.index, assumptions_), level + 1);
    if (node->op() == Op::kIota)
      return node->attr<SymExpr>("start") + node->attr<SymExpr>("step") * at.index[0];
    if (node->op() == Op::kSizeValue) return node->attr<SymExpr>("size");
    const auto of = [&](size_t i) { return place(of_operand(node->operand(i), at), level + 1); };
    if (node->op() == Op::kCast) return of(0);
    if (node->op() == Op::kNeg)
      if (const auto operand = of(0)) return -*operand;
    if (node->op() != Op::kAdd && node->op() != Op::kSub) return {};
    const auto left = of(0), right = of(1);
    if (!left || !right) return {};
    return node->op() == Op::kAdd ? *left + *right : *left - *right;
  }

  Assumptions assumptions_;
  Index range_;
  std::string key_, row_;  // axes; row_: empty where none is known
};

// Operands of which any being 0 makes the node's result 0, but for infinite numbers and NaN.
std::vector<const Value*> factors_in(const Node& node) {
  const Op op = node.op();
  if (op == Op::kMul) return {node.operand(0), node.operand(1)};
  if (op == Op::kCast || op == Op::kCopy || op == Op::kNeg || op == Op::kDiv)
    return {node.operand(0)};
  if (op == Op::kWhere)
    for (const size_t i : {1, 2})
      if (const auto zero = constant_of(*node.operand(3 - i)); zero && equals(*zero, 0))
        return {node.operand(i)};
  return {};
}

// An exponential of the value's own shape that it is a product of.
const Node* exponential_in(const Value& value) {
  const Node* node = value.producer();
  if (node == nullptr || node->op() == Op::kExp) return node;
  for (const Value* factor : factors_in(*node))
    if (factor->type().shape == value.type().shape)
      if (const Node* found = exponential_in(*factor)) return found;
  return nullptr;
}

// Whether the value is 0 wherever the exponential, which has its shape, is.
bool vanishes_with(const Value& value, const Node& exponential) {
  const Node* node = value.producer();
  if (node == nullptr || value.type().shape != exponential.result()->type().shape) return false;
  if (node == &exponential) return true;
  if (node->op() == Op::kSub || node->op() == Op::kAdd)
    return vanishes_with(*node->operand(0), exponential) &&
           vanishes_with(*node->operand(1), exponential);
  const std::vector<const Value*> factors = factors_in(*node);
  return std::any_of(factors.begin(), factors.end(),
                     [&](const Value* factor) { return vanishes_with(*factor, exponential); });
}

// Of weights that are exponentials of scores and norms, perhaps with factors.
bool rewrite_gradients(const Rewriter& rewriter, Node* node) {
  Graph& graph = rewriter.graph();
  const Value& weights = *node->operand(0);
  const Node* exponential = exponential_in(weights);
  if (exponential == nullptr || !vanishes_with(*node->operand(1), *exponential)) return false;
  const Node* difference = exponential->operand(0)->producer();
  if (difference == nullptr || difference->op() != Op::kSub) return false;
  Value* scores = difference->operand(0);
  if (scores->type().shape != weights.type().shape) return false;
  MaskReader reader(*node, graph.assumptions());
  reader.read_scores({scores, score_operands(*node)[0].index});
  if (reader.range() == node->attr<Index>("range"))
    return rewriter.no_match(*node, "no mask tells of a range");
  if (!reader.has_keys_for_each_row())  // its weights are NaN, and so are gradients of all values
    return rewriter.no_match(*node, "a row may see no key");
  const std::vector<Value*> of = node->operands();
  return rewriter.replace_by_new(node, [&] {
    return graph.attend_gradients(of[0], of[1], of[2], of[3], of[4], reader.range());
  });
}

bool rewrite(const Rewriter& rewriter, Node* node) {
  Graph& graph = rewriter.graph();
  Value* scores = node->operand(0);
  const Access at{scores, node->attr<Index>("lhs")};
  MaskReader reader(*node, graph.assumptions());
  const Node* mask = scores->producer();
  if (mask == nullptr) return false;
  if (mask->op() == Op::kWhere) {
    const bool is_all = reader.read_choice(*mask, at);
    Value* seen = mask->operand(is_lowest(*mask->operand(2)) ? 1 : 2);
    if (is_all && seen->type().shape == scores->type().shape) scores = seen;
  } else {
    reader.read_scores(at);
  }
  if (reader.range() == node->attr<Index>("range"))
    return rewriter.no_match(*node, "no mask tells of a range");
  const SymExpr keys = node->attr<Index>("reduced")[0];
  const bool empty_is_zero = node->attr<bool>("empty_is_zero");
  const TensorType& type = node->result()->type();
  return rewriter.replace_by_new(node, [&] {
    if (is_score_norm(*node))
      return graph.score_norm(node->op(), scores, at.index, keys, reader.range(), empty_is_zero,
                              type.shape);
    return graph.attend(scores, node->operand(1), factors_of(*node), at.index,
                        node->attr<Index>("rhs"), keys, reader.range(), empty_is_zero, type.shape,
                        type.dtype);
  });
}

}  // namespace

bool key_ranges(Graph& graph, const KeyRangesOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_attention(*node))
      has_changed |= node->op() == Op::kAttendGradients ? rewrite_gradients(rewriter, node)
                                                        : rewrite(rewriter, node);
  return has_changed;
}

}  // namespace mlcc::graph
