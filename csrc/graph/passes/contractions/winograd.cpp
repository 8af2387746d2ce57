#include "graph/passes/contractions/winograd.h"

#include <vector>

#include "graph/contraction.h"
#include "graph/rewriter.h"
#include "graph/static_values.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Of transformed filters: a number for each pixel of a tile of the image.
constexpr int64_t kProducts = 16;

// Of three along a dimension, four.
Value* transformed(Graph& graph, Value* filters, int64_t dim) {
  const auto part = [&](int64_t i) { return graph.slice(filters, dim, i, 1, 1); };
  Value *first = part(0), *middle = part(1), *last = part(2);
  Value* half = graph.expand(graph.full({}, DType::kF32, 0.5), first->type().shape);
  Value* ends = graph.pointwise(Op::kAdd, {first, last});
  const auto with_middle = [&](Op op) {
    return graph.pointwise(Op::kMul, {graph.pointwise(op, {ends, middle}), half});
  };
  return graph.cat({first, with_middle(Op::kAdd), with_middle(Op::kSub), last}, dim);
}

bool rewrite(const Rewriter& rewriter, const TileOptions& tiles, Node* node) {
  const auto dims = dims_of_3x3_filters(node->attr<Shape>("lhs"), node->attr<Shape>("rhs"),
                                        node->attr<Shape>("reduced"));
  if (!dims || node->operands().size() > 2)
    return rewriter.no_match(*node, "it is no 3x3 convolution of step 1");
  Value* image = node->operand(0);
  Value* filters = node->operand(1);
  const auto is_f32 = [](const Value& value) { return value.type().dtype == DType::kF32; };
  if (!is_f32(*image) || !is_f32(*filters)) return rewriter.no_match(*node, "it is not of f32");
  if (!is_static_value(*filters)) return rewriter.no_match(*node, "filters change with each call");
  Graph& graph = rewriter.graph();
  const Shape& shape = node->result()->type().shape;
  const auto channels = node->attr<Shape>("reduced")[2].as_constant();
  const auto columns = shape[3].as_constant();
  if (!channels || !columns || !is_dense_along(*image, 3))
    return rewriter.no_match(*node, "channels are not known, or do not lie side by side");
  const int64_t width = tiles.transformed_columns({.images = graph.expected(shape[0]),
                                                   .height = graph.expected(shape[1]),
                                                   .width = graph.expected(shape[2]),
                                                   .channels = *channels,
                                                   .columns = *columns});
  if (width == 0) return rewriter.no_match(*node, "it is likely faster as it is");
  return rewriter.replace_by_new(node, [&] {
    Value* value = transformed(graph, graph.permute(filters, *dims), 0);
    value = graph.reshape(transformed(graph, value, 1), {kProducts, *channels, *columns});
    const int64_t panels = (*columns + width - 1) / width;
    if (panels * width != *columns) value = graph.pad(value, 2, 0, panels * width, 0.0);
    value = graph.reshape(value, {kProducts, *channels, panels, width});
    value = graph.pointwise(Op::kCopy, {graph.permute(value, {2, 0, 1, 3})});
    return graph.contract(image, filters, node->attr<Shape>("lhs"), node->attr<Shape>("rhs"),
                          node->attr<Shape>("reduced"), shape, DType::kF32, value);
  });
}

}  // namespace

bool winograd(Graph& graph, const WinogradOptions& options) {
  if (!options.tiles || !options.tiles->transformed_columns) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract) has_changed |= rewrite(rewriter, *options.tiles, node);
  return has_changed;
}

}  // namespace mlcc::graph
