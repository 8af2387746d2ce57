#include "graph/passes/convolutions.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/passes/pack_operands.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;
using Numbers = std::vector<int64_t>;

// Output channels of a group below which most of a tile's columns, 32 of f32, would be idle.
constexpr int64_t kLeastColumns = 16;

// Depthwise convolutions of images that lie channels-last take 0.21, 0.25 and 0.04 ms at
// 112x112x32, 56x56x144 and 14x14x384, against 0.24, 0.28 and 0.10 of a library's that lie
// channels-first; where they have to be brought there and back it is 0.6, 0.7 and 0.12. Shifted
// images that one kernel adds up, at most.
constexpr int64_t kMostShifts = 9;

// A call of aten.convolution: x [n, c, ..], w [o, c / groups, ..], of which the last dimensions are
// those of the image.
struct Convolution {
  Value *x, *w, *bias;  // bias: may be null
  Numbers stride, padding, dilation;
  int64_t groups;
  size_t image_rank() const { return x->type().shape.size() - 2; }
};

std::optional<int64_t> number(const Argument& argument) {
  const auto* size = std::get_if<SymExpr>(&argument.value);
  return size == nullptr ? std::nullopt : size->as_constant();
}

std::optional<Numbers> numbers(const Argument& argument, size_t count) {
  const auto* list = std::get_if<ArgList>(&argument.value);
  if (list == nullptr) return std::nullopt;
  Numbers all;
  for (const Argument& one : *list) {
    const auto known = number(one);
    if (!known) return std::nullopt;
    all.push_back(*known);
  }
  // One number stands for all dimensions.
  if (all.size() == 1) all.resize(count, all.front());
  return all.size() == count ? std::optional(all) : std::nullopt;
}

Value* operand_of(const Node& node, const Argument& argument) {
  const auto* reference = std::get_if<ArgRef>(&argument.value);
  return reference == nullptr ? nullptr : node.operand(static_cast<size_t>(reference->index));
}

// Nothing where a part of the call is not known, or it is transposed.
std::optional<Convolution> convolution_of(const Node& node) {
  const ExternCall& call = node.extern_call();
  if (call.args.size() != 9 || !call.kwargs.empty()) return std::nullopt;
  Convolution found{operand_of(node, call.args[0]),
                    operand_of(node, call.args[1]),
                    operand_of(node, call.args[2]),
                    {},
                    {},
                    {},
                    1};
  const auto* transposed = std::get_if<bool>(&call.args[6].value);
  if (found.x == nullptr || found.w == nullptr || transposed == nullptr || *transposed)
    return std::nullopt;
  const size_t rank = found.x->type().shape.size();
  if (rank < 3 || rank > 5 || found.w->type().shape.size() != rank) return std::nullopt;
  auto stride = numbers(call.args[3], rank - 2), padding = numbers(call.args[4], rank - 2),
       dilation = numbers(call.args[5], rank - 2);
  const auto groups = number(call.args[8]);
  if (!stride || !padding || !dilation || !groups) return std::nullopt;
  const auto is_negative = [](int64_t by) { return by < 0; };
  if (std::any_of(padding->begin(), padding->end(), is_negative)) return std::nullopt;
  found.stride = *std::move(stride);
  found.padding = *std::move(padding);
  found.dilation = *std::move(dilation);
  found.groups = *groups;
  return found;
}

bool has_no_element(const Value& value) {
  const Shape& shape = value.type().shape;
  return std::any_of(shape.begin(), shape.end(),
                     [](const SymExpr& size) { return size.equals_constant(0); });
}

int64_t expected(const SymExpr& size, const Graph& graph) {
  return size.evaluate([&](std::string_view name) { return graph.size_hint(name); });
}

// Channels last: [0, 2, .., 1], and back: [0, rank - 1, 1, ..].
Numbers to_last(size_t rank) {
  Numbers dims{0};
  for (size_t d = 2; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  dims.push_back(1);
  return dims;
}

Numbers from_last(size_t rank) {
  Numbers dims{0, static_cast<int64_t>(rank) - 1};
  for (size_t d = 1; d + 1 < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

// x with its channels last, filled up such that windows end with it.
Value* image_of(Graph& graph, const Convolution& conv, const Shape& result) {
  const size_t rank = conv.x->type().shape.size();
  Value* image = graph.permute(conv.x, to_last(rank));
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    const SymExpr extent = image->type().shape[d + 1];
    const SymExpr needed = (result[d + 2] - 1) * conv.stride[d] +
                           (conv.w->type().shape[d + 2] - 1) * conv.dilation[d] + 1;
    const auto spare = (extent - needed).as_constant();
    if (conv.padding[d] == 0 && spare && *spare >= 0) continue;
    image = graph.pad(image, static_cast<int64_t>(d) + 1, conv.padding[d], needed, Attr(0.0));
  }
  return image;
}

SymExpr axis(size_t number) { return SymExpr::symbol(axis_name(number)); }

// The result with channels last, in the accumulator's dtype if `dtype` says so. Groups are an axis
// beside their channels.
Value* product(Graph& graph, const Convolution& conv, Value* image, const Shape& result,
               DType dtype) {
  const size_t spatial = conv.image_rank();
  const bool has_groups = conv.groups > 1;
  const Shape& weight = conv.w->type().shape;
  Value* w = conv.w;
  Shape shape{result[0]};
  shape.insert(shape.end(), result.begin() + 2, result.end());
  if (has_groups) {
    Shape cut{conv.groups, SymExpr::floordiv(weight[0], conv.groups)};
    cut.insert(cut.end(), weight.begin() + 1, weight.end());
    shape.insert(shape.end(), cut.begin(), cut.begin() + 2);
    w = graph.reshape(w, std::move(cut));
  } else {
    shape.push_back(result[1]);
  }
  const size_t rank = shape.size(), channel = rank + spatial;
  Shape lhs{axis(0)}, rhs, reduced(weight.begin() + 2, weight.end());
  reduced.push_back(weight[1]);
  for (size_t d = 0; d < spatial; ++d) {
    const bool is_one = weight[d + 2].equals_constant(1);
    const SymExpr within = is_one ? SymExpr(0) : axis(rank + d) * conv.dilation[d];
    lhs.push_back(axis(d + 1) * conv.stride[d] + within);
  }
  lhs.push_back(has_groups ? axis(spatial + 1) * weight[1] + axis(channel) : axis(channel));
  for (size_t d = spatial + 1; d < rank; ++d) rhs.push_back(axis(d));
  rhs.push_back(axis(channel));
  for (size_t d = 0; d < spatial; ++d) rhs.push_back(axis(rank + d));
  Value* sums = graph.contract(image, w, std::move(lhs), std::move(rhs), std::move(reduced),
                               std::move(shape), dtype);
  if (!has_groups) return sums;
  Shape merged{result[0]};
  merged.insert(merged.end(), result.begin() + 2, result.end());
  merged.push_back(result[1]);
  return graph.reshape(sums, std::move(merged));
}

// [o, 1, ..] as [.., 1, o].
Numbers weights_to_last(size_t spatial) {
  Numbers dims;
  for (size_t d = 0; d < spatial; ++d) dims.push_back(static_cast<int64_t>(d) + 2);
  dims.push_back(1);
  dims.push_back(0);
  return dims;
}

constexpr std::string_view kName = "aten.convolution.default";

// Whether somebody gets a value as it lies in memory who is no convolution. One by itself, of
// channels-first images to such, takes 1.0 to 1.3 times as long as a library's: 2.3 ms of 2.0 at
// 28x28x128, 3.8 of 2.9 at 128x128x32, 0.6 each way being the layout.
bool is_seen(const Graph& graph, const Value& value) {
  if (graph.is_output(&value)) return true;
  return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    if (user->op() == Op::kExtern) return user->extern_call().name != kName;
    return op_info(user->op()).op_class == OpClass::kIndexMap && is_seen(graph, *user->result());
  });
}

// Whether x lies channels-last, or is computed from what another convolution lays so.
bool is_channels_last(Value* x) {
  static constexpr int kMostSteps = 32;
  Value* at = x;
  for (int steps = 0; steps < kMostSteps; ++steps) {
    const auto view = strided_view(at);
    if (view && view->shape.size() > 1 && view->strides[1].equals_constant(1) &&
        !view->shape[1].equals_constant(1))
      return true;
    const Node* producer = at->producer();
    if (producer == nullptr || producer->operands().empty() ||
        (producer->op() != Op::kCast && op_info(producer->op()).op_class != OpClass::kPointwise))
      return false;
    const auto& operands = producer->operands();
    const auto same = std::find_if(operands.begin(), operands.end(), [&](const Value* operand) {
      return operand->type().shape == x->type().shape;
    });
    if (same == operands.end()) return false;
    at = *same;
  }
  return false;
}

// The extents of the windows, where they are known.
std::optional<Numbers> window_of(const Convolution& conv) {
  const Shape& weight = conv.w->type().shape;
  Numbers window;
  for (size_t d = 2; d < weight.size(); ++d) {
    const auto extent = weight[d].as_constant();
    if (!extent) return std::nullopt;
    window.push_back(*extent);
  }
  return window;
}

bool is_depthwise(const Convolution& conv) {
  return conv.groups > 1 && conv.w->type().shape[0].equals_constant(conv.groups) &&
         conv.w->type().shape[1].equals_constant(1);
}

// Sums of products with shifted images, channels last: one pointwise kernel along the channels.
Value* depthwise(Graph& graph, const Convolution& conv, Value* image, const Shape& result,
                 const Numbers& window) {
  const size_t spatial = conv.image_rank();
  // Weights with channels last. A maximum of one element is that element, and lies in memory.
  Value* weights = graph.reduce(Op::kMax, graph.permute(conv.w, weights_to_last(spatial)),
                                {static_cast<int64_t>(spatial)}, false);
  Numbers at(spatial, 0);
  Value* sum = nullptr;
  for (bool goes_on = true; goes_on;) {
    Value *shifted = image, *weight = weights;
    for (size_t d = 0; d < spatial; ++d) {
      shifted = graph.slice(shifted, static_cast<int64_t>(d) + 1, at[d] * conv.dilation[d],
                            result[d + 2], conv.stride[d]);
      weight = graph.slice(weight, static_cast<int64_t>(d), at[d], 1, 1);
    }
    weight = graph.reshape(weight, {result[1]});
    Value* product = graph.pointwise(Op::kMul, {shifted, weight});
    sum = sum == nullptr ? product : graph.pointwise(Op::kAdd, {sum, product});
    size_t d = spatial;
    while (d > 0 && ++at[d - 1] == window[d - 1]) at[--d] = 0;
    goes_on = d > 0;
  }
  return sum;
}

bool rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node) {
  const auto conv = convolution_of(*node);
  if (!conv) return rewriter.no_match(*node, "it is transposed, or its windows are not known");
  const TensorType& type = node->result()->type();
  if (type.device.kind != DeviceKind::kCpu) return rewriter.no_match(*node, "another device");
  const DType dtype = conv->x->type().dtype;
  if ((dtype != DType::kF32 && dtype != DType::kF64) || conv->w->type().dtype != dtype ||
      type.dtype != dtype || (conv->bias != nullptr && conv->bias->type().dtype != dtype))
    return rewriter.no_match(*node, "no code for its dtypes");
  if (options.tiles->columns(dtype) == 0)
    return rewriter.no_match(*node, "no vectors to compute it in");
  if (has_no_element(*node->result()) || has_no_element(*conv->x) || has_no_element(*conv->w))
    return rewriter.no_match(*node, "it has no elements");
  const Shape& weight = conv->w->type().shape;
  const bool is_sum = is_depthwise(*conv);
  const auto window = window_of(*conv);
  if (!window) return rewriter.no_match(*node, "its windows are not known");
  int64_t terms = 1;
  for (const int64_t extent : *window) terms *= extent;
  if (is_sum && terms > kMostShifts) return rewriter.no_match(*node, "its windows are large");
  if (is_sum && (!is_channels_last(conv->x) || is_seen(rewriter.graph(), *node->result())))
    return rewriter.no_match(*node, "its image does not lie channels-last");
  const auto columns = weight[0].as_constant();
  if (!columns || !weight[1].is_constant())
    return rewriter.no_match(*node, "its channels are not known");
  if (!is_sum && *columns / conv->groups < kLeastColumns)
    return rewriter.no_match(*node, "its groups have few channels");
  if (!is_sum && !is_channels_last(conv->x) && is_seen(rewriter.graph(), *node->result()))
    return rewriter.no_match(*node,
                             "its image would be brought channels-last and back for it alone");
  SymExpr rows = type.shape[0];
  for (size_t d = 2; d < type.shape.size(); ++d) rows *= type.shape[d];
  if (!is_worth_packing(*conv->w, expected(rows, rewriter.graph())))
    return rewriter.no_match(*node, "its weights change with each call, and it has few rows");
  return rewriter.replace_by_new(node, [&] {
    Graph& graph = rewriter.graph();
    Value* image = image_of(graph, *conv, type.shape);
    Value* result = is_sum ? depthwise(graph, *conv, image, type.shape, *window)
                           : product(graph, *conv, image, type.shape, dtype);
    if (conv->bias != nullptr) result = graph.pointwise(Op::kAdd, {result, conv->bias});
    return graph.permute(result, from_last(type.shape.size()));
  });
}

}  // namespace

bool is_convolution_call(const Node& node) {
  return node.op() == Op::kExtern && node.extern_call().name == kName;
}

bool convolutions(Graph& graph, const ConvolutionOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_convolution_call(*node)) has_changed |= rewrite(rewriter, options, node);
  return has_changed;
}

}  // namespace mlcc::graph
