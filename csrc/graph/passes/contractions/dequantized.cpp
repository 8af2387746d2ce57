#include "graph/passes/contractions/dequantized.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "graph/constants.h"
#include "graph/contraction.h"
#include "graph/value_range.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of a zero point, either way.
constexpr int64_t kMostZero = 255;

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
  Reader(const Node& contraction, Graph& graph, bool drops_rounding)
      : graph_(graph), assumptions_(graph.assumptions()), drops_rounding_(drops_rounding) {
    const Shape extents = contraction_extents(contraction);
    // Axes of one place stay what they are: tiles look for them.
    for (size_t axis = 0; axis < extents.size(); ++axis)
      if (!extents[axis].equals_constant(1)) assumptions_.set_index(axis_name(axis), extents[axis]);
  }

  std::optional<Dequantized> read(Value* value, const Shape& index) const {
    const Access access = behind_views(value, index);
    const DType dtype = access.value->type().dtype;
    if (is_byte(dtype))
      return Dequantized{{access.value, [=] { return access.value; }, access}, {}, {}, {}};
    const Node* node = access.value->producer();
    if (node == nullptr || !(dtype == DType::kF32 || is_integer(dtype) || is_rounded(dtype)))
      return std::nullopt;
    if (keeps_number(node) || is_rounding(*node)) return of(*node, 0, access.index);
    if (node->op() == Op::kPad) return of_pad(access);
    if (node->operands().size() != 2) return std::nullopt;
    if (node->op() == Op::kMul && is_float(dtype)) return of_product(*node, access.index);
    if (node->op() == Op::kSub) return of_difference(*node, access.index);
    if (node->op() == Op::kAdd && is_float(dtype)) return of_sum(*node, access.index);
    return std::nullopt;
  }

 private:
  bool is_rounded(DType dtype) const {
    return drops_rounding_ && (dtype == DType::kBF16 || dtype == DType::kF16);
  }

  bool is_rounding(const Node& node) const {
    return drops_rounding_ && node.op() == Op::kCast && is_float(node.operand(0)->type().dtype) &&
           is_float(node.result()->type().dtype);
  }

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

  std::optional<Dequantized> of(const Node& node, size_t i, const Shape& index) const {
    return read(node.operand(i), index_of(node, i, index));
  }

  std::optional<Dequantized> of_product(const Node& node, const Shape& index) const {
    for (const size_t i : {0, 1}) {
      auto found = of(node, i, index);
      if (!found || found->offset) continue;
      found->scales.push_back(operand(node, 1 - i, index));
      return found;
    }
    return std::nullopt;
  }

  std::optional<Dequantized> of_sum(const Node& node, const Shape& index) const {
    for (const size_t i : {0, 1}) {
      auto found = of(node, i, index);
      if (!found || found->offset || found->scales.empty()) continue;
      found->offset = operand(node, 1 - i, index);
      return found;
    }
    return std::nullopt;
  }

  std::optional<Dequantized> of_difference(const Node& node, const Shape& index) const {
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
    found->zero = ZeroPoint{number, std::move(zero)};
    return found;
  }

  // Around what stands for bytes, zeros stand for their zero point.
  std::optional<Dequantized> of_pad(const Access& access) const {
    auto whole = read_whole(access.value);
    if (!whole) return std::nullopt;
    Dequantized found{{whole->bytes, std::move(whole->make), access}, {}, {}, {}};
    if (whole->zero != 0) found.zero = ZeroPoint{whole->zero, {}};
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
    whole.make = [&graph = graph_, &map, make = std::move(whole.make),
                  dtype = whole.bytes->type().dtype] {
      const TensorType& type = map.result()->type();
      return graph.build(
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
    whole.make = [&graph = graph_, make = std::move(whole.make), dim, before, zero = whole.zero,
                  extent = pad.result()->type().shape[static_cast<size_t>(dim)]] {
      return graph.pad(make(), dim, before, extent, zero);
    };
    return whole;
  }

  Graph& graph_;
  Assumptions assumptions_;
  const bool drops_rounding_;
};

}  // namespace

std::optional<Dequantized> read_dequantized(const Node& contraction, size_t operand, Graph& graph,
                                            bool drops_rounding) {
  return Reader(contraction, graph, drops_rounding)
      .read(contraction.operand(operand), index_of_operand(contraction, operand));
}

std::optional<size_t> axis_of(const SymExpr& index) {
  const auto name = index.as_symbol();
  return name && is_axis_name(*name) ? std::optional(std::stoul(std::string(name->substr(1))))
                                     : std::nullopt;
}

bool are_read_whole(const Access& access, const Shape& extents) {
  for (size_t d = 0; d < access.index.size(); ++d)
    if (const auto axis = axis_of(access.index[d]);
        axis && !(access.value->type().shape[d] == extents[*axis]))
      return false;
  return true;
}

bool is_outside(const Access& access, const Shape& extents, size_t rank) {
  std::vector<SymExpr> seen;
  for (size_t d = 0; d < access.index.size(); ++d) {
    const SymExpr& e = access.index[d];
    if (access.value->type().shape[d].equals_constant(1)) continue;
    if (axis_of(e).value_or(rank) >= rank || std::find(seen.begin(), seen.end(), e) != seen.end())
      return false;
    seen.push_back(e);
  }
  return are_read_whole(access, extents);
}

Value* beside_result(Graph& graph, const Access& access, size_t rank) {
  const Shape& shape = access.value->type().shape;
  if (shape.empty()) return access.value;
  std::vector<int64_t> single;                      // dimensions of one element
  std::vector<std::pair<size_t, int64_t>> of_axes;  // others, by the axes along which they lie
  Shape wide(rank, 1);
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
    return graph.reshape(access.value, wide);
  std::sort(of_axes.begin(), of_axes.end());
  for (const auto& [axis, dim] : of_axes) single.push_back(dim);
  return graph.reshape(graph.permute(access.value, std::move(single)), wide);
}

Value* product_of(Graph& graph, const std::vector<Value*>& factors) {
  Value* all = nullptr;
  for (Value* next : factors) all = all == nullptr ? next : graph.pointwise(Op::kMul, {all, next});
  return all;
}

}  // namespace mlcc::graph
