#include "graph/passes/contractions/row_sums.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/passes/contractions/contractions.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

bool has_no_gaps_along(Value& value, size_t dim) {
  return is_dense_along(value, dim) || value.type().shape[dim].equals_constant(1);
}

// Rows of one operand for each of the other's: [.., 1, k] beside [.., n, k].
Worth worth_of_sums(Value& lhs, Value& rhs, const TileOptions& tiles) {
  const size_t rank = rhs.type().shape.size();
  if (!has_no_gaps_along(lhs, rank - 1) || !has_no_gaps_along(rhs, rank - 2)) return Worth::kCall;
  const auto rows = lhs.type().shape[rank - 2].as_constant();
  const auto columns = rhs.type().shape[rank - 1].as_constant();
  const int64_t few = std::min(rows.value_or(INT64_MAX), columns.value_or(INT64_MAX));
  const int64_t most = tiles.most_rows_summed(lhs.type().dtype, rhs.type().dtype);
  if (few > most) return Worth::kCall;
  // A static matrix would be packed: there the call has been found to be faster than that.
  return is_static_value(rhs) && columns != 1 ? Worth::kLikelyCall : Worth::kLikelyCode;
}

// The matrix, or batch of them, with a dimension of 1 in front of the `behind`-th last one.
Value* with_one(Graph& graph, Value* value, ptrdiff_t behind) {
  Shape shape = value->type().shape;
  shape.insert(shape.end() - behind, SymExpr(1));
  return graph.reshape(value, std::move(shape));
}

Value* sums(Graph& graph, Value* lhs, Value* rhs, DType dtype) {
  const DType accumulator = *accumulator_dtype(lhs->type().dtype, rhs->type().dtype);
  const auto rank = static_cast<int64_t>(rhs->type().shape.size());
  std::vector<int64_t> turned = {0, 2, 1};
  if (rank == 2) turned = {1, 0};
  Value* rows = graph.cast(with_one(graph, lhs, 1), accumulator);
  Value* columns = with_one(graph, graph.permute(rhs, std::move(turned)), 2);
  Value* products = graph.pointwise(Op::kMul, {rows, graph.cast(columns, accumulator)});
  return graph.cast(graph.reduce(Op::kSum, products, {rank}, false), dtype);
}

}  // namespace

bool row_sums(Graph& graph, const RowSumsOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes()) {
    if (!is_product_call(*node)) continue;
    has_changed |= compute_call(
        rewriter, options, node,
        [&](Value* lhs, Value* rhs) { return worth_of_sums(*lhs, *rhs, *options.tiles); },
        [&](Value* lhs, Value* rhs, DType dtype) { return sums(graph, lhs, rhs, dtype); });
  }
  return has_changed;
}

}  // namespace mlcc::graph
