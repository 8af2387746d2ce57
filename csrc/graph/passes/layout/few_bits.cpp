#include "graph/passes/layout/few_bits.h"

#include <vector>

#include "graph/contraction.h"
#include "graph/value_range.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of a value in a byte. With two bits four runs would be needed for a panel, too short for vectors.
constexpr int64_t kBits = 4, kValuesOfByte = 8 / kBits;
constexpr int64_t kMask = (int64_t{1} << kBits) - 1;

constexpr size_t kRuns = PanelDims::kRuns;

Shape with_runs(Shape shape, int64_t runs, int64_t columns) {
  shape[PanelDims::kColumns] = columns;
  shape.insert(shape.begin() + kRuns, runs);
  return shape;
}

Value* bytes_of(Graph& graph, Value* panels, const FewBits& few, int64_t columns) {
  const DType dtype = panels->type().dtype;
  const Device device = panels->type().device;
  const auto number = [&](DType of, int64_t value) {
    return graph.full_int({}, of, value, device);
  };
  Value* values = panels;
  if (few.low != 0) values = graph.pointwise(Op::kSub, {values, number(dtype, few.low)});
  // Columns beyond the last one are zeros, which need not be among the values.
  values = graph.pointwise(Op::kAnd, {values, number(dtype, kMask)});
  values = graph.cast(values, DType::kU8);
  const Shape shape = panels->type().shape;
  values = graph.reshape(values, with_runs(shape, kValuesOfByte, columns));
  Value* bytes = nullptr;
  for (int64_t run = 0; run < kValuesOfByte; ++run) {
    Value* part = graph.slice(values, kRuns, run, 1, 1);
    if (run == 0) {
      bytes = part;
      continue;
    }
    part = graph.pointwise(Op::kShiftLeft, {part, number(DType::kU8, run * kBits)});
    bytes = graph.pointwise(Op::kOr, {bytes, part});
  }
  return graph.pointwise(Op::kCopy, {bytes});
}

}  // namespace

std::optional<FewBits> few_bits(const Value& value) {
  if (!is_integer(value.type().dtype)) return std::nullopt;
  const auto range = value_range(value);
  if (!range || is_infinite(range->low) || is_infinite(range->high)) return std::nullopt;
  const uint64_t others = static_cast<uint64_t>(range->high) - static_cast<uint64_t>(range->low);
  if (others >> kBits != 0) return std::nullopt;
  return FewBits{range->low};
}

Value* in_few_bits(Graph& graph, Value* panels, const FewBits& few) {
  const Shape shape = panels->type().shape;
  const int64_t columns = *shape[PanelDims::kColumns].as_constant() / kValuesOfByte;
  const Device device = panels->type().device;
  const DType dtype = panels->type().dtype;
  Value* bytes = bytes_of(graph, panels, few, columns);
  bytes = graph.expand(bytes, with_runs(shape, kValuesOfByte, columns));
  Value* shifts = graph.iota(kValuesOfByte, DType::kU8, 0, kBits, device);
  shifts = graph.reshape(shifts, {kValuesOfByte, 1, 1});
  Value* values = graph.pointwise(Op::kShiftRight, {bytes, shifts});
  values = graph.pointwise(Op::kAnd, {values, graph.full_int({}, DType::kU8, kMask, device)});
  values = graph.cast(graph.reshape(values, shape), dtype);
  if (few.low == 0) return values;
  return graph.pointwise(Op::kAdd, {values, graph.full_int({}, dtype, few.low, device)});
}

}  // namespace mlcc::graph
