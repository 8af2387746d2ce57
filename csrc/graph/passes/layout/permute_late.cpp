#include "graph/passes/layout/permute_late.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/convolution.h"
#include "graph/index_map.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;
using Dims = std::vector<int64_t>;
using Images = std::set<const Value*>;  // membership only

const Shape& shape_of(const Value* value) { return value->type().shape; }

bool is_pointwise(const Node& node) {
  return node.op() == Op::kCast ||
         (op_info(node.op()).op_class == OpClass::kPointwise && node.op() != Op::kPhilox);
}

bool is_reduction(const Node& node) { return op_info(node.op()).op_class == OpClass::kReduction; }

bool moves_in_dims(const Node& node) {
  return node.op() == Op::kPad || node.op() == Op::kExtend || node.op() == Op::kWindow ||
         node.op() == Op::kSlice;
}

// A convolution: all images are multiplied with the same weights.
bool is_convolution(const Node& node) {
  return node.op() == Op::kContract && shape_of(node.result()).size() > 2 &&
         !axes_of_operand(node, 1)[0];
}

// Images of two or more dimensions, channels last: what convolutions read.
bool brings_channels_last(const Node& node) {
  if (node.op() != Op::kPermute) return false;
  const Dims& dims = node.attr<Dims>("dims");
  if (dims.size() < 4 || dims.front() != 0 || dims.back() != 1) return false;
  for (size_t d = 1; d + 1 < dims.size(); ++d)
    if (dims[d] != static_cast<int64_t>(d) + 1) return false;
  return true;
}

bool is_image(const Node& node, const Images& images) {
  if (node.op() == Op::kExtern || node.results().size() != 1) return false;
  if (is_convolution(node) || brings_channels_last(node)) return true;
  if (!is_pointwise(node) && !is_reduction(node) && !moves_in_dims(node) &&
      node.op() != Op::kReshape && node.op() != Op::kCat)
    return false;
  return shape_of(node.result()).size() > 1 &&
         std::any_of(node.operands().begin(), node.operands().end(), [&](const Value* operand) {
           return images.count(operand) != 0 &&
                  (!is_pointwise(node) || shape_of(operand) == shape_of(node.result()));
         });
}

// An input whose channels are last and that is read as if they were not.
bool is_image_input(const Node& node) {
  if (node.op() != Op::kPermute) return false;
  const Value& input = *node.operand(0);
  return input.producer() == nullptr && shape_of(&input).size() >= 4 &&
         node.attr<Dims>("dims") == from_channels_last(shape_of(&input).size());
}

// The permute of an image that `value` is.
const Node* permute_of_image(const Value* value, const Images& images) {
  const Node* producer = value->producer();
  return producer != nullptr && producer->op() == Op::kPermute &&
                 images.count(producer->operand(0)) != 0
             ? producer
             : nullptr;
}

// The operand of an op whose result is permuted by `dims`, as it is before that.
Value* before_permute(Graph& graph, Value* operand, const Dims& dims) {
  const size_t rank = shape_of(operand).size();
  if (rank == 0) return operand;
  const Node* producer = operand->producer();
  if (producer != nullptr && producer->op() == Op::kPermute && producer->attr<Dims>("dims") == dims)
    return producer->operand(0);
  if (rank < dims.size()) {
    Shape shape(dims.size() - rank, SymExpr(1));
    shape.insert(shape.end(), shape_of(operand).begin(), shape_of(operand).end());
    operand = graph.reshape(operand, std::move(shape));
  }
  return graph.permute(operand, inverse_permutation(dims));
}

Value* permute_if_needed(Graph& graph, Value* value, const Dims& dims) {
  return std::is_sorted(dims.begin(), dims.end()) ? value : graph.permute(value, dims);
}

Value* pointwise_before(Graph& graph, const Node& node, const Dims& dims) {
  std::vector<Value*> operands;
  for (Value* operand : node.operands()) operands.push_back(before_permute(graph, operand, dims));
  Value* result = node.op() == Op::kCast ? graph.cast(operands.front(), node.result()->type().dtype)
                                         : graph.pointwise(node.op(), std::move(operands));
  return graph.permute(result, dims);
}

Value* cat_before(Graph& graph, const Node& node, const Dims& dims) {
  std::vector<Value*> operands;
  for (Value* operand : node.operands()) operands.push_back(before_permute(graph, operand, dims));
  const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  return graph.permute(graph.cat(std::move(operands), dims[dim]), dims);
}

Value* moved_before(Graph& graph, const Node& node, Value* image, Dims dims) {
  const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
  const SymExpr& extent = shape_of(node.result())[dim];
  const int64_t along = dims[dim];
  if (node.op() == Op::kPad) {
    image = graph.pad(image, along, node.attr<int64_t>("before"), extent, node.attr("value"));
  } else if (node.op() == Op::kExtend) {
    image = graph.extend(image, along, node.attr<int64_t>("before"), extent,
                         node.attr<std::string>("mode"));
  } else if (node.op() == Op::kSlice) {
    image =
        graph.slice(image, along, node.attr<SymExpr>("start"), extent, node.attr<int64_t>("step"));
  } else {
    image = graph.window(image, along, extent, shape_of(node.result()).back(),
                         node.attr<int64_t>("step"), node.attr<int64_t>("dilation"));
    dims.push_back(static_cast<int64_t>(dims.size()));
  }
  return graph.permute(image, dims);
}

Value* reduction_before(Graph& graph, const Node& node, Value* image, const Dims& dims) {
  const Dims& reduced = node.attr<Dims>("dims");
  const bool keepdim = shape_of(node.result()).size() == dims.size();
  Dims of_image;
  for (const int64_t dim : reduced) of_image.push_back(dims[static_cast<size_t>(dim)]);
  std::sort(of_image.begin(), of_image.end());
  Value* result = graph.reduce(node.op(), image, of_image, keepdim);
  if (keepdim) return graph.permute(result, dims);
  Dims left;
  for (size_t d = 0; d < dims.size(); ++d) {
    if (std::find(reduced.begin(), reduced.end(), static_cast<int64_t>(d)) != reduced.end())
      continue;
    const auto gone = std::count_if(of_image.begin(), of_image.end(),
                                    [&](int64_t other) { return other < dims[d]; });
    left.push_back(dims[d] - gone);
  }
  return permute_if_needed(graph, result, left);
}

// As many first dimensions as the permute moves and the reshape keeps, those behind being others of
// the same elements: positions in windows, which become one. 0: there is no such border.
size_t num_kept(const Node& reshape, const Dims& dims) {
  size_t moved = dims.size();
  while (moved > 0 && dims[moved - 1] == static_cast<int64_t>(moved) - 1) --moved;
  const Shape &from = shape_of(reshape.operand(0)), &to = shape_of(reshape.result());
  if (moved > to.size() || !std::equal(from.begin(), from.begin() + moved, to.begin())) return 0;
  return moved;
}

Value* reshape_before(Graph& graph, const Node& node, Value* image, Dims dims) {
  const size_t kept = num_kept(node, dims);
  const Shape &from = shape_of(image), &to = shape_of(node.result());
  Shape shape(from.begin(), from.begin() + kept);
  shape.insert(shape.end(), to.begin() + kept, to.end());
  dims.resize(kept);
  while (dims.size() < shape.size()) dims.push_back(static_cast<int64_t>(dims.size()));
  return graph.permute(graph.reshape(image, std::move(shape)), dims);
}

bool rewrite(const Rewriter& rewriter, Node* node, Images& images) {
  const Node* permute = nullptr;
  for (const Value* operand : node->operands()) {
    const Node* found = permute_of_image(operand, images);
    if (found != nullptr &&
        (permute == nullptr || shape_of(operand).size() > shape_of(permute->result()).size()))
      permute = found;
  }
  if (permute == nullptr) return rewriter.no_match(*node, "it reads no image");
  const Dims dims = permute->attr<Dims>("dims");
  // It would be permuted then, and the next turn would move that permute here again.
  const bool has_other_image =
      (is_pointwise(*node) || node->op() == Op::kCat) &&
      std::any_of(node->operands().begin(), node->operands().end(), [&](const Value* operand) {
        return images.count(operand) != 0 &&
               shape_of(operand).size() == shape_of(node->result()).size();
      });
  if (has_other_image) return rewriter.no_match(*node, "another image lies as the result does");
  if (is_pointwise(*node) && shape_of(node->result()) != shape_of(permute->result()))
    return rewriter.no_match(*node, "its result is larger than the image");
  if (node->op() == Op::kReshape && num_kept(*node, dims) == 0)
    return rewriter.no_match(*node, "it takes dimensions together that the permute moves");
  if (is_layout_seen(rewriter.graph(), *node->result()))
    return rewriter.no_match(*node, "it is seen how the result lies");
  if (std::any_of(node->operands().begin(), node->operands().end(),
                  [](const Value* operand) { return is_written(*operand); }))
    return rewriter.no_match(*node, "an operand is written");
  return rewriter.replace_by_new(node, [&] {
    Graph& graph = rewriter.graph();
    Value* moved = is_pointwise(*node)   ? pointwise_before(graph, *node, dims)
                   : is_reduction(*node) ? reduction_before(graph, *node, permute->operand(0), dims)
                   : node->op() == Op::kCat ? cat_before(graph, *node, dims)
                   : node->op() == Op::kReshape
                       ? reshape_before(graph, *node, permute->operand(0), dims)
                       : moved_before(graph, *node, permute->operand(0), dims);
    images.insert(moved->producer()->op() == Op::kPermute ? moved->producer()->operand(0) : moved);
    return moved;
  });
}

}  // namespace

bool permute_late(Graph& graph, const PermuteLateOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  Images images;
  for (Node* node : graph.nodes()) {
    const bool can_move = is_pointwise(*node) || is_reduction(*node) || moves_in_dims(*node) ||
                          node->op() == Op::kCat || node->op() == Op::kReshape;
    if (can_move && rewrite(rewriter, node, images))
      has_changed = true;
    else if (is_image_input(*node))
      images.insert(node->operand(0));
    else if (is_image(*node, images))
      images.insert(node->result());
  }
  return has_changed;
}

}  // namespace mlcc::graph
