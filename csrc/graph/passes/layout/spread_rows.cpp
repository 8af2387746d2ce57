#include "graph/passes/layout/spread_rows.h"

#include "graph/inference.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

// Rows this far apart, or a multiple of it, meet in one set of a first-level cache: 64 sets of
// lines of so many bytes.
constexpr int64_t kSameSetBytes = 4096;
constexpr int64_t kLineBytes = 64;
// Fewer rows find room in one set.
constexpr int64_t kFewRows = 4;

// Of a value that a kernel of the graph writes and that nobody else sees in memory.
bool may_choose_strides(const Graph& graph, Value& value) {
  const Node* producer = value.producer();
  return producer != nullptr && producer->op() != Op::kExtern && value.type().strides.empty() &&
         strided_view(&value)->base == &value && !is_layout_seen(graph, value) &&
         !is_written(value);
}

bool rewrite(const Rewriter& rewriter, Node* node, Value* value) {
  const TensorType& type = value->type();
  if (type.shape.size() < 2) return rewriter.no_match(*node, "an operand has no rows");
  const auto length = type.shape.back().as_constant();
  const int64_t size = dtype_size(type.dtype);
  if (!length || *length * size % kSameSetBytes != 0)
    return rewriter.no_match(*node, "rows lie in different sets of a cache");
  const auto rows = type.shape[type.shape.size() - 2].as_constant();
  if (rows && *rows < kFewRows) return rewriter.no_match(*node, "few rows");
  if (!may_choose_strides(rewriter.graph(), *value))
    return rewriter.no_match(*node, "the rows' places are seen by others");
  if (!rewriter.may_rewrite()) return false;
  std::vector<SymExpr> padded = type.shape;
  padded.back() = *length + kLineBytes / size;
  rewriter.graph().set_strides(value, dense_strides(padded));
  return true;
}

}  // namespace

bool spread_rows(Graph& graph, const SpreadRowsOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes()) {
    if (node->op() != Op::kContract) continue;
    for (Value* operand : node->operands())
      has_changed |= rewrite(rewriter, node, strided_view(operand)->base);
  }
  return has_changed;
}

}  // namespace mlcc::graph
