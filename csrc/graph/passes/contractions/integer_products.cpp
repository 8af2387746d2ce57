#include "graph/passes/contractions/integer_products.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/passes/contractions/dequantized.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "graph/value_range.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

class Rewrite {
 public:
  Rewrite(Graph& graph, const Node& node)
      : graph_(graph), node_(node), result_(node.result()->type().shape),
        reduced_(node.attr<Shape>("reduced")) {}

  // Why it is left alone; nothing if it is not.
  std::string_view read(const TileOptions& tiles) {
    if (node_.operands().size() != 2) return "its filters are transformed";
    if (node_.operand(0)->type().dtype != DType::kF32 ||
        node_.operand(1)->type().dtype != DType::kF32 ||
        node_.result()->type().dtype != DType::kF32)
      return "no operands of f32";
    for (const size_t i : {0, 1}) {
      auto found = read_dequantized(node_, i, graph_);
      if (!found || found->offset) return "an operand does not stand for bytes";
      operands_.push_back(std::move(*found));
    }
    const Value &left = *operands_[0].integers.bytes, &right = *operands_[1].integers.bytes;
    if (!tiles.terms || tiles.terms(left.type().dtype, right.type().dtype) <= 1)
      return "no instructions for its bytes";
    if (!is_static_value(left) && !is_static_value(right))
      return "both operands change with each call";
    if (!fit_in_i32()) return "sums that might leave i32";
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Dequantized& operand = operands_[i];
      if (!are_read_whole(operand.integers.access, contraction_extents(node_)))
        return "a part of the bytes is read";
      if (!are_outside(operand.scales)) return "scales change along the sums";
      if (!has_zero(i)) continue;
      if (!operand.zero->number && !is_outside(operand.zero->access))
        return "zeros change along the sums";
      if (!has_plain_axes(operands_[1 - i].integers.access.index)) return "zeros beside windows";
    }
    return {};
  }

  Value* make() {
    for (Dequantized& operand : operands_) integers_.push_back(operand.integers.make());
    Value* sums =
        graph_.contract(integers_[0], integers_[1], operands_[0].integers.access.index,
                        operands_[1].integers.access.index, reduced_, result_, DType::kI32);
    for (const size_t i : {0, 1}) {
      if (!has_zero(i)) continue;
      Value* less = graph_.pointwise(Op::kMul, {zero(i), sum_of(1 - i)});
      sums = graph_.pointwise(Op::kSub, {sums, less});
    }
    if (has_zero(0) && has_zero(1)) {
      const int64_t terms = *product(reduced_).as_constant();
      Value* zeros = graph_.pointwise(Op::kMul, {zero(0), zero(1)});
      sums = graph_.pointwise(Op::kAdd, {sums, graph_.pointwise(Op::kMul, {zeros, number(terms)})});
    }
    Value* value = graph_.cast(sums, DType::kF32);
    // One by the other first, as they meet in each product: neither need be within reach of sums.
    std::vector<Value*> all;
    for (const Dequantized& operand : operands_)
      for (const Access& scale : operand.scales) all.push_back(beside(scale));
    Value* scales = product_of(graph_, all);
    return scales == nullptr ? value : graph_.pointwise(Op::kMul, {value, scales});
  }

 private:
  bool is_axis_of_result(const SymExpr& e) const {
    return axis_of(e).value_or(result_.size()) < result_.size();
  }

  // The largest difference of an operand's integers and its zero point.
  int64_t largest(const Dequantized& operand) const {
    SymRange range = *value_range(*operand.integers.bytes);
    if (!operand.zero) return std::max(-range.low, range.high);
    const auto& [number, access] = *operand.zero;
    const SymRange zero = number ? SymRange{*number, *number} : *value_range(*access.value);
    // Pads hold zero points too.
    range = {std::min(range.low, zero.low), std::max(range.high, zero.high)};
    return std::max(range.high - zero.low, zero.high - range.low);
  }

  // Of the differences: sums of what zero points add may leave i32 and come back.
  bool fit_in_i32() const {
    const auto terms = product(reduced_).as_constant();
    return terms && *terms <= INT32_MAX / (largest(operands_[0]) * largest(operands_[1]) + 1);
  }

  bool is_outside(const Access& access) const {
    return graph::is_outside(access, contraction_extents(node_), result_.size());
  }

  bool are_outside(const std::vector<Access>& all) const {
    return std::all_of(all.begin(), all.end(),
                       [&](const Access& access) { return is_outside(access); });
  }

  // Whether each dimension of it is an axis, all reduced ones among them.
  bool has_plain_axes(const Shape& index) const {
    size_t found = 0;
    for (const SymExpr& e : index) {
      const auto axis = axis_of(e);
      if (!axis) return false;
      if (*axis >= result_.size()) ++found;
    }
    return found == reduced_.size();
  }

  bool has_zero(size_t i) const { return operands_[i].has_zero(); }

  Value* beside(const Access& access) const {
    return beside_result(graph_, access, result_.size());
  }

  Value* number(int64_t value) const {
    return graph_.full_int({}, DType::kI32, value, node_.result()->type().device);
  }

  Value* zero(size_t i) const {
    const auto& [whole, access] = *operands_[i].zero;
    if (whole) return number(*whole);
    return beside({graph_.cast(access.value, DType::kI32), access.index});
  }

  // Of an operand's integers over the reduced axes, beside the result.
  Value* sum_of(size_t i) const {
    std::vector<int64_t> dims;
    Access sum{nullptr, operands_[i].integers.access.index};
    for (size_t d = 0; d < sum.index.size(); ++d) {
      if (is_axis_of_result(sum.index[d])) continue;
      dims.push_back(static_cast<int64_t>(d));
      sum.index[d] = 0;
    }
    sum.value =
        graph_.reduce(Op::kSum, graph_.cast(integers_[i], DType::kI32), std::move(dims), true);
    return beside(sum);
  }

  Graph& graph_;
  const Node& node_;
  const Shape result_, reduced_;
  std::vector<Dequantized> operands_;
  std::vector<Value*> integers_;  // of the operands
};

bool rewrite(const Rewriter& rewriter, const TileOptions& tiles, Node* node) {
  Rewrite products(rewriter.graph(), *node);
  if (const std::string_view reason = products.read(tiles); !reason.empty())
    return rewriter.no_match(*node, reason);
  return rewriter.replace_by_new(node, [&] { return products.make(); });
}

}  // namespace

bool integer_products(Graph& graph, const IntegerProductsOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract) has_changed |= rewrite(rewriter, *options.tiles, node);
  return has_changed;
}

}  // namespace mlcc::graph
