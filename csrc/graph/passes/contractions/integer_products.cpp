#include "graph/passes/contractions/integer_products.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "graph/constants.h"
#include "graph/contraction.h"
#include "graph/index_map.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "graph/value_range.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of a zero point, either way.
constexpr int64_t kMostZero = 255;

// Bytes as a contraction may read them.
struct Integers {
  Value* bytes;                  // that they are made of
  std::function<Value*()> make;  // of views and pads of these
  Access access;                 // what `make` stands for
};

struct Zero {
  std::optional<int64_t> number;  // everywhere
  Access access;                  // else integers, which bytes hold
};

// What an operand of a contraction stands for, over its axes: (integers - zero) * scales.
struct Quantized {
  Integers integers;
  std::optional<Zero> zero;
  std::vector<Access> scales;  // of f32
};

// A whole number that a byte holds, if the value is one everywhere.
std::optional<int64_t> whole_number(const Value& value) {
  const auto constant = constant_of(value);
  if (!constant) return std::nullopt;
  const double real =
      is_float(constant->dtype) ? constant->real : static_cast<double>(constant->integer);
  if (!(real >= -kMostZero && real <= kMostZero) || real != std::trunc(real)) return std::nullopt;
  return static_cast<int64_t>(real);
}

// Whether it is a cast of integers that changes none of them; of small ones also to a float.
bool keeps_number(const Node* node) {
  if (node == nullptr || node->op() != Op::kCast) return false;
  const DType from = node->operand(0)->type().dtype, to = node->result()->type().dtype;
  return is_integer(from) && (is_float(to) || (is_integer(to) && to != DType::kU8 &&
                                               dtype_size(to) > dtype_size(from)));
}

class Reader {
 public:
  Reader(const Node& contraction, Graph& graph) : graph_(graph), assumptions_(graph.assumptions()) {
    const Shape extents = contraction_extents(contraction);
    // Axes of one place stay what they are: tiles look for them.
    for (size_t axis = 0; axis < extents.size(); ++axis)
      if (!extents[axis].equals_constant(1)) assumptions_.set_index(axis_name(axis), extents[axis]);
  }

  std::optional<Quantized> read(Value* value, const Shape& index) const {
    const Access access = behind_views(value, index);
    const DType dtype = access.value->type().dtype;
    if (is_byte(dtype))
      return Quantized{{access.value, [=] { return access.value; }, access}, {}, {}};
    const Node* node = access.value->producer();
    if (node == nullptr || !(dtype == DType::kF32 || is_integer(dtype))) return std::nullopt;
    if (keeps_number(node)) return of(*node, 0, access.index);
    if (node->op() == Op::kPad) return of_pad(access);
    if (node->operands().size() != 2) return std::nullopt;
    if (node->op() == Op::kMul && is_float(dtype)) return of_product(*node, access.index);
    if (node->op() == Op::kSub) return of_difference(*node, access.index);
    return std::nullopt;
  }

 private:
  Access behind_views(Value* value, const Shape& index) const {
    Access access = resolve(value, index, assumptions_);
    for (SymExpr& e : access.index) e = assumptions_.simplify(e);
    return access;
  }

  // Of a pointwise node at `index`.
  static Shape index_of(const Node& node, size_t i, const Shape& index) {
    const Shape& shape = node.operand(i)->type().shape;
    return shape == node.result()->type().shape ? index : broadcast_index(shape, index);
  }

  Access operand(const Node& node, size_t i, const Shape& index) const {
    return behind_views(node.operand(i), index_of(node, i, index));
  }

  std::optional<Quantized> of(const Node& node, size_t i, const Shape& index) const {
    return read(node.operand(i), index_of(node, i, index));
  }

  std::optional<Quantized> of_product(const Node& node, const Shape& index) const {
    for (const size_t i : {0, 1}) {
      auto found = of(node, i, index);
      if (!found) continue;
      found->scales.push_back(operand(node, 1 - i, index));
      return found;
    }
    return std::nullopt;
  }

  std::optional<Quantized> of_difference(const Node& node, const Shape& index) const {
    auto found = of(node, 0, index);
    if (!found || found->zero || !found->scales.empty()) return std::nullopt;
    Access zero = operand(node, 1, index);
    const auto number = whole_number(*zero.value);
    if (constant_of(*zero.value) && !number) return std::nullopt;
    if (!number) {
      while (keeps_number(zero.value->producer()))
        zero = operand(*zero.value->producer(), 0, zero.index);
      const auto range = value_range(*zero.value);
      if (!range || range->low < -kMostZero || range->high > kMostZero) return std::nullopt;
    }
    found->zero = Zero{number, std::move(zero)};
    return found;
  }

  // Around what stands for bytes, zeros stand for their zero point.
  std::optional<Quantized> of_pad(const Access& access) const {
    auto whole = read_whole(access.value);
    if (!whole) return std::nullopt;
    Quantized found{{whole->bytes, std::move(whole->make), access}, {}, {}};
    if (whole->zero != 0) found.zero = Zero{whole->zero, {}};
    for (Value* scale : whole->scales)
      found.scales.push_back({scale, Shape(scale->type().shape.size(), 0)});
    return found;
  }

  // The same of all elements of a value, whose zero points and scales are one number each.
  struct Whole {
    Value* bytes;
    std::function<Value*()> make;
    int64_t zero = 0;
    std::vector<Value*> scales;
  };

  std::optional<Whole> read_whole(Value* value) const {
    if (is_byte(value->type().dtype)) return Whole{value, [=] { return value; }, 0, {}};
    const Node* node = value->producer();
    if (node == nullptr) return std::nullopt;
    if (node->op() == Op::kMul && is_float(value->type().dtype)) {
      for (const size_t i : {0, 1}) {
        Value* scale = node->operand(1 - i);
        auto found = is_single(*scale) ? read_whole(node->operand(i)) : std::nullopt;
        if (!found) continue;
        found->scales.push_back(scale);
        return found;
      }
      return std::nullopt;
    }
    auto found = node->operands().empty() ? std::nullopt : read_whole(node->operand(0));
    if (!found || keeps_number(node)) return found;
    if (node->op() == Op::kSub) return minus(std::move(*found), *node->operand(1));
    if (is_single_index_map(node->op())) return seen_through(std::move(*found), *node);
    return node->op() == Op::kPad ? padded(std::move(*found), *node) : std::nullopt;
  }

  static bool is_single(const Value& value) {
    return product(value.type().shape).equals_constant(1);
  }

  static std::optional<Whole> minus(Whole whole, const Value& zero) {
    const auto number = whole_number(zero);
    if (!number || whole.zero != 0 || !whole.scales.empty()) return std::nullopt;
    whole.zero = *number;
    return whole;
  }

  std::optional<Whole> seen_through(Whole whole, const Node& map) const {
    whole.make = [this, &map, make = std::move(whole.make), dtype = whole.bytes->type().dtype] {
      const TensorType& type = map.result()->type();
      return graph_.build(
          map.op(), {make()}, map.attrs(),
          {.dtype = dtype, .shape = type.shape, .strides = {}, .device = type.device});
    };
    return whole;
  }

  std::optional<Whole> padded(Whole whole, const Node& pad) const {
    const auto* around = std::get_if<double>(&pad.attr("value"));
    const bool is_unsigned = whole.bytes->type().dtype == DType::kU8;
    const int64_t low = is_unsigned ? 0 : INT8_MIN, high = is_unsigned ? UINT8_MAX : INT8_MAX;
    if (around == nullptr || *around != 0 || whole.zero < low || whole.zero > high)
      return std::nullopt;
    const auto dim = pad.attr<int64_t>("dim"), before = pad.attr<int64_t>("before");
    whole.make = [this, make = std::move(whole.make), dim, before, zero = whole.zero,
                  extent = pad.result()->type().shape[static_cast<size_t>(dim)]] {
      return graph_.pad(make(), dim, before, extent, zero);
    };
    return whole;
  }

  Graph& graph_;
  Assumptions assumptions_;
};

class Rewrite {
 public:
  Rewrite(Graph& graph, const Node& node)
      : graph_(graph), node_(node), result_(node.result()->type().shape),
        reduced_(node.attr<Shape>("reduced")), reader_(node, graph) {}

  // Why it is left alone; nothing if it is not.
  std::string_view read(const TileOptions& tiles) {
    if (node_.operands().size() != 2) return "its filters are transformed";
    if (node_.operand(0)->type().dtype != DType::kF32 ||
        node_.operand(1)->type().dtype != DType::kF32 ||
        node_.result()->type().dtype != DType::kF32)
      return "no operands of f32";
    for (const size_t i : {0, 1}) {
      auto found = reader_.read(node_.operand(i), node_.attr<Shape>(i == 0 ? "lhs" : "rhs"));
      if (!found) return "an operand does not stand for bytes";
      operands_.push_back(std::move(*found));
    }
    const Value &left = *operands_[0].integers.bytes, &right = *operands_[1].integers.bytes;
    if (!tiles.terms || tiles.terms(left.type().dtype, right.type().dtype) <= 1)
      return "no instructions for its bytes";
    if (!is_static_value(left) && !is_static_value(right))
      return "both operands change with each call";
    if (!fit_in_i32()) return "sums that might leave i32";
    for (size_t i = 0; i < operands_.size(); ++i) {
      const Quantized& operand = operands_[i];
      if (!are_read_whole(operand.integers.access)) return "a part of the bytes is read";
      if (!are_outside(operand.scales)) return "scales change along the sums";
      if (!has_zero(i)) continue;
      if (!operand.zero->number && !is_outside(operand.zero->access))
        return "zeros change along the sums";
      if (!has_plain_axes(operands_[1 - i].integers.access.index)) return "zeros beside windows";
    }
    return {};
  }

  Value* make() {
    for (Quantized& operand : operands_) integers_.push_back(operand.integers.make());
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
    Value* scales = nullptr;
    for (const Quantized& operand : operands_)
      for (const Access& scale : operand.scales) {
        Value* next = beside_result(scale);
        scales = scales == nullptr ? next : graph_.pointwise(Op::kMul, {scales, next});
      }
    return scales == nullptr ? value : graph_.pointwise(Op::kMul, {value, scales});
  }

 private:
  static std::optional<size_t> axis_of(const SymExpr& e) {
    const auto name = e.as_symbol();
    return name && is_axis_name(*name) ? std::optional(std::stoul(std::string(name->substr(1))))
                                       : std::nullopt;
  }

  bool is_axis_of_result(const SymExpr& e) const {
    return axis_of(e).value_or(result_.size()) < result_.size();
  }

  // Whether dimensions along which an axis goes have its extent: no slice of more.
  bool are_read_whole(const Access& access) const {
    const Shape extents = contraction_extents(node_);
    for (size_t d = 0; d < access.index.size(); ++d)
      if (const auto axis = axis_of(access.index[d]);
          axis && !(access.value->type().shape[d] == extents[*axis]))
        return false;
    return true;
  }

  // The largest difference of an operand's integers and its zero point.
  int64_t largest(const Quantized& operand) const {
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

  // Whether it may be laid beside the result: each of its dimensions is one of the result's, or
  // has one element.
  bool is_outside(const Access& access) const {
    std::vector<SymExpr> seen;
    for (size_t d = 0; d < access.index.size(); ++d) {
      const SymExpr& e = access.index[d];
      if (access.value->type().shape[d].equals_constant(1)) continue;
      if (!is_axis_of_result(e) || std::find(seen.begin(), seen.end(), e) != seen.end())
        return false;
      seen.push_back(e);
    }
    return are_read_whole(access);
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

  bool has_zero(size_t i) const { return operands_[i].zero && operands_[i].zero->number != 0; }

  Value* number(int64_t value) const {
    return graph_.full_int({}, DType::kI32, value, node_.result()->type().device);
  }

  Value* zero(size_t i) const {
    const auto& [whole, access] = *operands_[i].zero;
    if (whole) return number(*whole);
    return beside_result({graph_.cast(access.value, DType::kI32), access.index});
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
    return beside_result(sum);
  }

  // The value with its dimensions where the result has them.
  Value* beside_result(const Access& access) const {
    const Shape& shape = access.value->type().shape;
    if (shape.empty()) return access.value;
    std::vector<int64_t> single;                      // dimensions of one element
    std::vector<std::pair<size_t, int64_t>> of_axes;  // others, by the axes along which they lie
    Shape wide(result_.size(), 1);
    for (size_t d = 0; d < shape.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      if (shape[d].equals_constant(1)) {
        single.push_back(dim);
        continue;
      }
      const size_t axis = *axis_of(access.index[d]);
      of_axes.emplace_back(axis, dim);
      wide[axis] = shape[d];
    }
    if (shape == wide) return access.value;
    const auto lies_behind = [](const auto& a, const auto& b) { return a.first > b.first; };
    if (std::adjacent_find(of_axes.begin(), of_axes.end(), lies_behind) == of_axes.end())
      return graph_.reshape(access.value, wide);
    std::sort(of_axes.begin(), of_axes.end());
    for (const auto& [axis, dim] : of_axes) single.push_back(dim);
    return graph_.reshape(graph_.permute(access.value, std::move(single)), wide);
  }

  Graph& graph_;
  const Node& node_;
  const Shape result_, reduced_;
  const Reader reader_;
  std::vector<Quantized> operands_;
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
