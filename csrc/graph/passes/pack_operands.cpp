#include "graph/passes/pack_operands.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "graph/contraction.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Rows from which on a copy of the other operand in each call is little of the work.
constexpr int64_t kRowsWorthPacking = 64;

int64_t expected(const SymExpr& size, const Graph& graph) {
  return size.evaluate([&](std::string_view name) { return graph.size_hint(name); });
}

bool has_known_size(const Value& value) {
  const Shape& shape = value.type().shape;
  return std::all_of(shape.begin(), shape.end(),
                     [](const SymExpr& size) { return size.is_constant(); });
}

// Whether a value is computed from static inputs alone, so that it is kept (static_values.h).
bool is_kept(const Value& value) {
  if (value.producer() == nullptr) return value.is_static() && has_known_size(value);
  const Node& node = *value.producer();
  if (node.op() == Op::kExtern || node.op() == Op::kPhilox) return false;
  return std::all_of(node.operands().begin(), node.operands().end(),
                     [](const Value* operand) { return is_kept(*operand); });
}

bool is_dense_along(Value& value, size_t dim) {
  return strided_view(&value)->strides[dim].equals_constant(1);
}

// Of an operand whose index is axes alone: the dimension of each axis; -1: none.
std::optional<std::vector<int>> dims_of_axes(const Node& node, size_t operand) {
  std::vector<int> dims(contraction_extents(node).size(), -1);
  const Shape& index = node.attr<Shape>(operand == 0 ? "lhs" : "rhs");
  for (size_t d = 0; d < index.size(); ++d) {
    const auto name = index[d].as_symbol();
    if (!name || !is_axis_name(*name)) return std::nullopt;
    int& dim = dims[std::stoul(name->substr(1))];
    if (dim >= 0) return std::nullopt;
    dim = static_cast<int>(d);
  }
  return dims;
}

// An operand, and which of its dimensions are columns of tiles.
struct Columns {
  size_t operand;
  size_t axis;
  std::vector<int> dims;  // of the operand, by axis
};

// The last axis of the result that one operand has alone, preferably the last axis at all: results
// are stored along it.
std::optional<Columns> find_columns(const Node& node) {
  const size_t rank = node.result()->type().shape.size();
  for (size_t axis = rank; axis-- > 0;)
    for (const size_t operand : {1, 0}) {
      if (!axes_of_operand(node, operand)[axis] || axes_of_operand(node, 1 - operand)[axis]) continue;
      const auto dims = dims_of_axes(node, operand);
      if (dims) return Columns{operand, axis, *dims};
      return std::nullopt;
    }
  return std::nullopt;
}

// Rows that the columns are multiplied with: the axes of the result that only the other operand has.
SymExpr rows_beside(const Node& node, size_t operand) {
  const std::vector<bool> own = axes_of_operand(node, operand);
  const Shape& shape = node.result()->type().shape;
  SymExpr rows = 1;
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (!own[axis]) rows = rows * shape[axis];
  return rows;
}

Value* pack(Graph& graph, Value* value, const Node& node, const Columns& columns, int64_t width,
            Shape& index) {
  const Shape& shape = value->type().shape;
  const auto dim = static_cast<size_t>(columns.dims[columns.axis]);
  const SymExpr panels = SymExpr::floordiv(shape[dim] + (width - 1), width);
  if (!(panels * width == shape[dim])) {
    const Attr zero = is_float(value->type().dtype) ? Attr(0.0) : Attr(int64_t{0});
    value = graph.pad(value, static_cast<int64_t>(dim), 0, panels * width, zero);
  }
  Shape split = shape;
  split[dim] = panels;
  split.insert(split.begin() + static_cast<ptrdiff_t>(dim) + 1, SymExpr(width));
  value = graph.reshape(value, split);
  // Axes of the result without columns, panels, reduced axes, columns.
  const size_t rank = node.result()->type().shape.size();
  std::vector<int64_t> order;
  index.clear();
  const auto add = [&](size_t axis) {
    const int at = columns.dims[axis];
    if (at < 0 || axis == columns.axis) return;
    order.push_back(at > static_cast<int>(dim) ? at + 1 : at);
    index.push_back(SymExpr::symbol(axis_name(axis)));
  };
  const SymExpr column = SymExpr::symbol(axis_name(columns.axis));
  for (size_t axis = 0; axis < rank; ++axis) add(axis);
  order.push_back(static_cast<int64_t>(dim));
  index.push_back(SymExpr::floordiv(column, width));
  for (size_t axis = rank; axis < columns.dims.size(); ++axis) add(axis);
  order.push_back(static_cast<int64_t>(dim) + 1);
  index.push_back(SymExpr::mod(column, width));
  return graph.pointwise(Op::kCopy, {graph.permute(value, std::move(order))});
}

bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  const std::optional<Columns> columns = find_columns(*node);
  if (!columns) return rewriter.no_match(*node, "no operand has an axis for columns");
  Value* value = node->operand(columns->operand);
  const auto dim = static_cast<size_t>(columns->dims[columns->axis]);
  const Graph& graph = rewriter.graph();
  const bool has_many_rows =
      expected(rows_beside(*node, columns->operand), graph) >= kRowsWorthPacking;
  if (!is_kept(*value) && !has_many_rows && is_dense_along(*value, dim))
    return rewriter.no_match(*node, "few rows share what would be packed in each call");
  const auto accumulator =
      accumulator_dtype(node->operand(0)->type().dtype, node->operand(1)->type().dtype);
  const int64_t width = options.tiles->columns(*accumulator);
  if (width == 0) return rewriter.no_match(*node, "no vectors to compute it in");
  return rewriter.replace_by_new(node, [&] {
    Shape index;
    Value* packed = pack(rewriter.graph(), value, *node, *columns, width, index);
    std::vector<Value*> operands = node->operands();
    operands[columns->operand] = packed;
    Shape lhs = node->attr<Shape>("lhs"), rhs = node->attr<Shape>("rhs");
    (columns->operand == 0 ? lhs : rhs) = std::move(index);
    const TensorType& type = node->result()->type();
    return rewriter.graph().contract(operands[0], operands[1], std::move(lhs), std::move(rhs),
                                     node->attr<Shape>("reduced"), type.shape, type.dtype);
  });
}

}  // namespace

bool pack_operands(Graph& graph, const PackOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract) has_changed |= rewrite(rewriter, options, node);
  return has_changed;
}

bool is_worth_code(Value& lhs, Value& rhs, const TileOptions&, const Graph& graph) {
  if (is_kept(rhs)) return true;
  const Shape& left = lhs.type().shape;
  const int64_t rows = expected(left[left.size() - 2], graph);
  return rows >= kRowsWorthPacking || is_dense_along(rhs, rhs.type().shape.size() - 1);
}

}  // namespace mlcc::graph
