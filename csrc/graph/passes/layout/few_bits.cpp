#include "graph/passes/layout/few_bits.h"

#include <vector>

#include "graph/contraction.h"
#include "graph/value_range.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of one of the two values in a byte. Four of two bits would need four runs, too short for vectors.
constexpr int64_t kBits = 4;
constexpr int64_t kMask = (int64_t{1} << kBits) - 1;
constexpr int64_t kNumRuns = 2;

constexpr size_t kRuns = PanelDims::kRuns;

Shape with_runs(Shape shape, int64_t runs, int64_t columns) {
  shape[PanelDims::kColumns] = columns;
  shape.insert(shape.begin() + kRuns, runs);
  return shape;
}

// Of numbers below 16, with a dimension of one run.
Value* joined(Graph& graph, Value* panels, int64_t columns) {
  Value* values = graph.reshape(panels, with_runs(panels->type().shape, kNumRuns, columns));
  Value* low = graph.slice(values, kRuns, 0, 1, 1);
  Value* high = graph.slice(values, kRuns, 1, 1, 1);
  Value* bits = graph.full_int({}, DType::kU8, kBits, panels->type().device);
  high = graph.pointwise(Op::kShiftLeft, {high, bits});
  return graph.pointwise(Op::kCopy, {graph.pointwise(Op::kOr, {low, high})});
}

Value* bytes_of(Graph& graph, Value* panels, int64_t lowest, int64_t columns) {
  const DType dtype = panels->type().dtype;
  const Device device = panels->type().device;
  const auto number = [&](DType of, int64_t value) {
    return graph.full_int({}, of, value, device);
  };
  Value* values = panels;
  if (lowest != 0) values = graph.pointwise(Op::kSub, {values, number(dtype, lowest)});
  // Columns beyond the last one are zeros, which need not be among the values.
  values = graph.pointwise(Op::kAnd, {values, number(dtype, kMask)});
  return joined(graph, graph.cast(values, DType::kU8), columns);
}

}  // namespace

std::optional<int64_t> lowest_of_few(const Value& value) {
  if (!is_integer(value.type().dtype)) return std::nullopt;
  const auto range = value_range(value);
  if (!range || is_infinite(range->low) || is_infinite(range->high)) return std::nullopt;
  const uint64_t others = static_cast<uint64_t>(range->high) - static_cast<uint64_t>(range->low);
  if (others >> kBits != 0) return std::nullopt;
  return range->low;
}

Value* two_in_a_byte(Graph& graph, Value* panels) {
  Shape shape = panels->type().shape;
  const int64_t columns = *shape[PanelDims::kColumns].as_constant() / kNumRuns;
  shape[PanelDims::kColumns] = columns;
  return graph.reshape(joined(graph, panels, columns), shape);
}

Value* in_few_bits(Graph& graph, Value* panels, int64_t lowest) {
  const Shape shape = panels->type().shape;
  const int64_t columns = *shape[PanelDims::kColumns].as_constant() / kNumRuns;
  const Device device = panels->type().device;
  const DType dtype = panels->type().dtype;
  Value* bytes = bytes_of(graph, panels, lowest, columns);
  bytes = graph.expand(bytes, with_runs(shape, kNumRuns, columns));
  Value* shifts = graph.iota(kNumRuns, DType::kU8, 0, kBits, device);
  shifts = graph.reshape(shifts, {kNumRuns, 1, 1});
  Value* values = graph.pointwise(Op::kShiftRight, {bytes, shifts});
  values = graph.pointwise(Op::kAnd, {values, graph.full_int({}, DType::kU8, kMask, device)});
  values = graph.cast(graph.reshape(values, shape), dtype);
  if (lowest == 0) return values;
  return graph.pointwise(Op::kAdd, {values, graph.full_int({}, dtype, lowest, device)});
}

}  // namespace mlcc::graph
