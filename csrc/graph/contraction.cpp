#include "graph/contraction.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <unordered_set>

#include "graph/static_values.h"

namespace mlcc::graph {
namespace {

bool is_small_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

// The part of its memory, in quarters, that what a value is computed from takes at most, so that
// reading that instead is worth the computation.
constexpr int64_t kMostQuarters = 3;

}  // namespace

std::optional<DType> accumulator_dtype(DType lhs, DType rhs) {
  if (is_small_float(lhs) && is_small_float(rhs)) return DType::kF32;
  if (is_byte(lhs) && is_byte(rhs)) return DType::kI32;
  if (lhs != rhs) return std::nullopt;
  if (lhs == DType::kF64 || lhs == DType::kI32 || lhs == DType::kI64) return lhs;
  if (lhs == DType::kI16) return DType::kI32;
  return std::nullopt;
}

std::string axis_name(size_t axis) { return "d" + std::to_string(axis); }

bool is_axis_name(std::string_view name) {
  return name.size() > 1 && name[0] == 'd' && std::all_of(name.begin() + 1, name.end(), [](char c) {
           return std::isdigit(static_cast<unsigned char>(c)) != 0;
         });
}

SymExpr over_axes(const SymExpr& e, const std::vector<SymExpr>& place) {
  return e.substitute([&](std::string_view name) {
    return is_axis_name(name) ? std::optional(place[std::stoul(std::string(name.substr(1)))])
                              : std::nullopt;
  });
}

const std::vector<SymExpr>& index_of_operand(const Node& contraction, size_t operand) {
  static constexpr std::array kNames = {"lhs", "rhs", "lhs_scales", "rhs_scales", "starts"};
  return contraction.attr<std::vector<SymExpr>>(kNames.at(operand));
}

std::vector<SymExpr> contraction_extents(const Node& contraction) {
  if (contraction.op() == Op::kAttendGradients) return contraction.operand(0)->type().shape;
  std::vector<SymExpr> extents = contraction.result()->type().shape;
  const auto& reduced = contraction.attr<std::vector<SymExpr>>("reduced");
  extents.insert(extents.end(), reduced.begin(), reduced.end());
  return extents;
}

std::vector<bool> axes_of_operand(const Node& contraction, size_t operand) {
  const auto& index = contraction.attr<std::vector<SymExpr>>(operand == 0 ? "lhs" : "rhs");
  std::vector<bool> axes(contraction_extents(contraction).size());
  for (size_t axis = 0; axis < axes.size(); ++axis)
    axes[axis] = std::any_of(index.begin(), index.end(),
                             [&](const SymExpr& e) { return e.contains(axis_name(axis)); });
  return axes;
}

std::optional<std::vector<int64_t>> dims_of_3x3_filters(const std::vector<SymExpr>& lhs,
                                                        const std::vector<SymExpr>& rhs,
                                                        const std::vector<SymExpr>& reduced) {
  const auto axis = [](size_t i) { return SymExpr::symbol(axis_name(i)); };
  const std::vector<SymExpr> image = {axis(0), axis(1) + axis(4), axis(2) + axis(5), axis(6)};
  if (lhs != image || rhs.size() != image.size() || reduced.size() != 3 ||
      !reduced[0].equals_constant(3) || !reduced[1].equals_constant(3))
    return std::nullopt;
  std::vector<int64_t> dims;
  for (const size_t i : {4, 5, 6, 3}) {
    const auto found = std::find(rhs.begin(), rhs.end(), axis(i));
    if (found == rhs.end()) return std::nullopt;
    dims.push_back(found - rhs.begin());
  }
  return dims;
}

bool is_computed_value(const Value& value) {
  const Node* producer = value.producer();
  return producer != nullptr && op_info(producer->op()).op_class == OpClass::kPointwise &&
         is_cheap(producer->op());
}

bool is_computed_from_less(const Value& value) {
  if (!is_computed_value(value)) return false;
  const auto read = bytes_behind_cheap_ops(value), own = bytes_of(value);
  return read && own && *read * 4 <= *own * kMostQuarters;
}

bool is_computed_in_panels(const Node& contraction, size_t operand) {
  if (contraction.op() != Op::kContract || operand > 1) return false;
  const Value& value = *contraction.operand(operand);
  const auto& index = contraction.attr<std::vector<SymExpr>>(operand == 0 ? "lhs" : "rhs");
  if (index.size() != PanelDims::kCount || value.users().size() != 1) return false;
  const auto is_of_column = [](const SymExpr& e, AtomKind kind) {
    const std::vector<SymExpr::Function> functions = e.functions();
    return functions.size() == 1 && functions.front().kind == kind &&
           functions.front().divisor.is_constant() && functions.front().numerator.as_symbol();
  };
  const SymExpr &panel = index[PanelDims::kPanels], &column = index[PanelDims::kColumns];
  return is_of_column(panel, AtomKind::kFloorDiv) && is_of_column(column, AtomKind::kMod) &&
         panel.functions().front().numerator == column.functions().front().numerator &&
         panel.functions().front().divisor == column.functions().front().divisor &&
         is_computed_from_less(value);
}

int64_t columns_of_run(const Value& panels) {
  const auto columns = [](const Value& value, size_t dim) {
    return value.type().shape[dim].as_constant().value_or(1);
  };
  int64_t found = columns(panels, PanelDims::kColumns);
  std::vector<const Value*> open = {&panels};
  std::unordered_set<const Value*> seen;  // membership only
  while (!open.empty()) {
    const Value* value = open.back();
    open.pop_back();
    const Node* node = value->producer();
    if (node == nullptr || !seen.insert(value).second || !is_cheap(node->op())) continue;
    const bool joins_runs = node->op() == Op::kReshape &&
                            node->operand(0)->type().shape.size() == PanelDims::kCount + 1;
    if (joins_runs) found = std::min(found, columns(*node->operand(0), PanelDims::kRuns + 1));
    open.insert(open.end(), node->operands().begin(), node->operands().end());
  }
  return found;
}

}  // namespace mlcc::graph
