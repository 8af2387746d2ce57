#include "graph/passes/contractions/convolutions.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/convolution.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;
using Numbers = std::vector<int64_t>;

// Shifted images that one kernel adds up for a depthwise convolution, at most: a window of 3x3. Of
// images that lie channels-last that is faster than a library's call, but not where they have to be
// brought there and back. The figures: docs/decisions/0025-contractions.md.
constexpr int64_t kMostShifts = 9;
// The same without a library: beyond it the kernel would take long to compile. What is left is a
// nest of loops that has no vectors.
constexpr int64_t kMostShiftsAlone = 1024;

// [o, 1, ..] as [.., 1, o].
Numbers weights_to_last(size_t spatial) {
  Numbers dims;
  for (size_t d = 0; d < spatial; ++d) dims.push_back(static_cast<int64_t>(d) + 2);
  dims.push_back(1);
  dims.push_back(0);
  return dims;
}

// The extents of the windows, where they are known.
std::optional<Numbers> window_of(const Convolution& conv) {
  Numbers window;
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    const auto extent = conv.window(d).as_constant();
    if (!extent) return std::nullopt;
    window.push_back(*extent);
  }
  return window;
}

bool is_depthwise(const Convolution& conv) {
  const Shape& weight = conv.weight->type().shape;
  return conv.groups > 1 && weight[0].equals_constant(conv.groups) && weight[1].equals_constant(1);
}

// A value whose image dimensions begin at one of its dimensions.
struct Image {
  Value* value;
  int64_t first;
};

// `sum` (null: 0) and the products of shifted images with what weighs them, of that shape each.
Value* add_shifts(Graph& graph, const Convolution& conv, const Shape& result, const Numbers& window,
                  const Image& image, const Image& weights, const Shape& weight_shape,
                  DType accumulator, Value* sum) {
  const size_t spatial = conv.image_rank();
  Numbers at(spatial, 0);
  for (bool goes_on = true; goes_on;) {
    Value *shifted = image.value, *weight = weights.value;
    for (size_t d = 0; d < spatial; ++d) {
      const auto dim = static_cast<int64_t>(d);
      shifted = graph.slice(shifted, image.first + dim, at[d] * conv.dilation[d], result[d + 1],
                            conv.stride[d]);
      weight = graph.slice(weight, weights.first + dim, at[d], 1, 1);
    }
    weight = graph.reshape(weight, weight_shape);
    if (sum == nullptr)
      sum = graph.pointwise(Op::kMul, {shifted, weight});
    else if (accumulator == DType::kF32)
      sum = graph.pointwise(Op::kAddAlpha, {sum, shifted, weight});
    else  // some CPUs have no such instruction
      sum = graph.pointwise(Op::kAdd, {sum, graph.pointwise(Op::kMul, {shifted, weight})});
    size_t d = spatial;
    while (d > 0 && ++at[d - 1] == window[d - 1]) at[--d] = 0;
    goes_on = d > 0;
  }
  return sum;
}

// Sums of products with shifted images, channels last: one pointwise kernel along the channels.
Value* depthwise(Graph& graph, const Convolution& conv, const Shape& result, const Numbers& window,
                 DType accumulator) {
  const size_t spatial = conv.image_rank();
  Value* image = graph.permute(conv.image, to_channels_last(result.size()));
  image = graph.cast(filled_image(graph, conv, image, result), accumulator);
  // Weights with channels last. A maximum of one element is that element, and lies in memory.
  Value* weights = graph.reduce(Op::kMax, graph.permute(conv.weight, weights_to_last(spatial)),
                                {static_cast<int64_t>(spatial)}, false);
  weights = graph.cast(weights, accumulator);
  return add_shifts(graph, conv, result, window, {image, 1}, {weights, 0}, {result.back()},
                    accumulator, nullptr);
}

// The same for one channel of results, where an image lies row by row: along the rows.
Value* single_channel(Graph& graph, const Convolution& conv, const Shape& result,
                      const Numbers& window, DType accumulator) {
  const size_t spatial = conv.image_rank();
  const Shape& shape = conv.image->type().shape;
  const int64_t channels = *conv.weight->type().shape[1].as_constant();
  Shape rows(shape.begin() + 1, shape.end());
  rows[0] = shape[0] * shape[1];
  Value* image = filled_image(graph, conv, graph.reshape(conv.image, rows), result);
  Shape filled = image->type().shape;
  filled[0] = shape[1];
  filled.insert(filled.begin(), shape[0]);
  image = graph.cast(graph.reshape(image, filled), accumulator);
  Value* weights = graph.cast(conv.weight, accumulator);
  Value* sum = nullptr;
  for (int64_t c = 0; c < channels; ++c) {
    Value* of_channel = graph.slice(image, 1, c, 1, 1);
    Value* weights_of_channel = graph.slice(weights, 1, c, 1, 1);
    sum = add_shifts(graph, conv, result, window, {of_channel, 2}, {weights_of_channel, 2}, {1},
                     accumulator, sum);
  }
  return graph.permute(sum, to_channels_last(spatial + 2));
}

// Of a convolution, or of a transposed one.
Value* result_image(Graph& graph, const Convolution& conv, const Shape& result, DType dtype) {
  Value* image = graph.permute(conv.image, to_channels_last(result.size()));
  if (conv.is_transposed) return large_image(graph, conv, image, result, dtype);
  return small_image(graph, conv, filled_image(graph, conv, image, result), result, dtype);
}

bool lies_channels_last(const Value& image) {
  return image.type().dense_or_strides()[1].equals_constant(1) &&
         !image.type().shape[1].equals_constant(1);
}

// Libraries take f64 through a product of matrices, or element by element where it is depthwise.
bool has_fast_library(DType dtype) { return dtype != DType::kF64; }

// Of images that are known to have their channels last, or to be brought there for several. A call
// of one that the caller sees lies as it shall; inside of a network it would have to be brought
// there.
Worth worth_of_code(const Graph& graph, const Node& node, const Convolution& conv) {
  const Value& result = *node.result();
  if (!has_fast_library(result.type().dtype)) return Worth::kCode;
  const bool is_seen = is_image_seen(graph, result);
  const bool lies_so = lies_channels_last(result);
  if (is_depthwise(conv) && !conv.is_transposed) {
    if (!is_seen) return Worth::kCode;
    return lies_so ? Worth::kLikelyCall : Worth::kCall;
  }
  auto products = static_cast<double>(graph.expected(conv.weight->type().shape[1]));
  for (const SymExpr& size : result.type().shape)
    products *= static_cast<double>(graph.expected(size));
  const auto window = window_of(conv);
  const bool is_point =
      std::all_of(window->begin(), window->end(), [](int64_t e) { return e == 1; });
  const bool steps =
      std::any_of(conv.stride.begin(), conv.stride.end(), [](int64_t s) { return s > 1; });
  // With several images a library is faster on some machines.
  if (is_point && steps && !conv.is_transposed && lies_so && products <= kMostProductsInDoubt &&
      graph.expected(result.type().shape[0]) > 1)
    return Worth::kLikelyCode;
  return Worth::kCode;
}

// Why a library's call is the better choice; nothing where code is. `is_sum`: of shifted images.
std::string_view slower_than_call(const PassOptions& options, const Graph& graph, const Node& node,
                                  const Convolution& conv, bool is_sum, int64_t terms) {
  if (!options.has_library) return {};
  const DType dtype = conv.image->type().dtype;
  const Shape& weight = conv.weight->type().shape;
  if (is_sum && terms > kMostShifts) return "its windows are large";
  if (is_sum && !is_channels_last(conv.image) && has_fast_library(dtype))
    return "its image does not lie channels-last";
  const int64_t columns =
      conv.is_transposed ? *weight[1].as_constant() : *weight[0].as_constant() / conv.groups;
  if (!is_sum && columns < kLeastColumns) return "its groups have few channels";
  const bool is_point = terms == 1;
  if (!is_sum && !is_channels_last(conv.image) && (is_point || has_fast_library(dtype)) &&
      is_image_seen(graph, *node.result()))
    return "its image would be brought channels-last and back for it alone";
  if (!are_weights_worth_packing(graph, *conv.weight,
                                 conv.is_transposed ? *conv.image : *node.result()))
    return "its weights change with each call, and it has few pixels";
  if (!options.wants_code(graph, node, worth_of_code(graph, node, conv)))
    return "a library is likely or found to be faster";
  return {};
}

bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  const auto conv = convolution_of(*node);
  if (!conv) return rewriter.no_match(*node, "its windows are not known");
  const TensorType& type = node->result()->type();
  if (type.device.kind != DeviceKind::kCpu) return rewriter.no_match(*node, "another device");
  const DType dtype = conv->image->type().dtype;
  const auto accumulator = accumulator_dtype(dtype, dtype);
  if (!accumulator || !is_float(dtype) || conv->weight->type().dtype != dtype ||
      type.dtype != dtype || (conv->bias != nullptr && conv->bias->type().dtype != dtype))
    return rewriter.no_match(*node, "no code for its dtypes");
  if (options.has_library && options.tiles->columns(*accumulator) == 0)
    return rewriter.no_match(*node, "no vectors to compute it in");
  if (has_no_element(*node->result()) || has_no_element(*conv->image) ||
      has_no_element(*conv->weight))
    return rewriter.no_match(*node, "it has no elements");
  const Shape& weight = conv->weight->type().shape;
  const Shape result = channels_last_shape(type.shape);
  const auto window = window_of(*conv);
  if (!window) return rewriter.no_match(*node, "its windows are not known");
  if (!weight[0].is_constant() || !weight[1].is_constant())
    return rewriter.no_match(*node, "its channels are not known");
  int64_t terms = 1;
  for (const int64_t extent : *window) terms *= extent;
  const bool are_shifts_few = options.has_library || terms <= kMostShiftsAlone;
  const bool is_sum = is_depthwise(*conv) && !conv->is_transposed && are_shifts_few;
  const bool is_single = !options.has_library && !conv->is_transposed && conv->groups == 1 &&
                         weight[0].equals_constant(1) && terms > 1 &&
                         terms * *weight[1].as_constant() <= kMostShiftsAlone;
  if (conv->is_transposed &&
      !has_large_image(*conv, result, channels_last_shape(conv->image->type().shape)))
    return rewriter.no_match(*node, "it has strides, and its sizes are not known or it is dilated");
  const auto reason = slower_than_call(options, rewriter.graph(), *node, *conv, is_sum, terms);
  if (!reason.empty()) return rewriter.no_match(*node, reason);
  return rewriter.replace_by_new(node, [&] {
    Graph& graph = rewriter.graph();
    const DType sums = conv->bias == nullptr ? dtype : *accumulator;
    Value* image = is_sum      ? depthwise(graph, *conv, result, *window, *accumulator)
                   : is_single ? single_channel(graph, *conv, result, *window, *accumulator)
                               : result_image(graph, *conv, result, sums);
    if (conv->bias != nullptr)
      image = graph.pointwise(Op::kAdd, {image, graph.cast(conv->bias, *accumulator)});
    return graph.permute(graph.cast(image, dtype), from_channels_last(type.shape.size()));
  });
}

}  // namespace

bool convolutions(Graph& graph, const ConvolutionOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_convolution_call(*node)) has_changed |= rewrite(rewriter, options, node);
  return has_changed;
}

}  // namespace mlcc::graph
