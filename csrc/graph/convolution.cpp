#include "graph/convolution.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "graph/arguments.h"
#include "graph/contraction.h"
#include "graph/static_values.h"
#include "graph/strided_view.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;
using Numbers = std::vector<int64_t>;

constexpr std::string_view kName = "aten.convolution.default";
constexpr std::string_view kGradientName = "aten.convolution_backward.default";

// The figures behind these: docs/decisions/0025-contractions.md.

// Sums over pixels are cut into parts, as products of their own that are added up later, of so many
// terms: fewer are not worth storing their sums, and more do not stay in a second-level cache.
constexpr int64_t kLeastTerms = 128;
constexpr int64_t kMostTerms = 4096;
// Pixels that make a copy of the weights in each call little of the work.
constexpr int64_t kLeastPixels = 256;
// Rows of a tile of the weights' gradient, about: where there are fewer channels, a window's
// elements and their channels are rows together.
constexpr int64_t kTileRows = 12;
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

// The arguments from stride to groups, which both calls have.
bool read_windows(std::span<const Argument> args, Convolution& conv) {
  const auto* transposed = std::get_if<bool>(&args[3].value);
  const auto groups = number(args[5]);
  if (transposed == nullptr || !groups) return false;
  const size_t rank = conv.image->type().shape.size();
  if (rank < 3 || rank > 5 || conv.weight->type().shape.size() != rank) return false;
  auto stride = numbers(args[0], rank - 2), padding = numbers(args[1], rank - 2),
       dilation = numbers(args[2], rank - 2);
  if (!stride || !padding || !dilation) return false;
  const auto is_negative = [](int64_t by) { return by < 0; };
  if (std::any_of(padding->begin(), padding->end(), is_negative)) return false;
  conv.stride = *std::move(stride);
  conv.padding = *std::move(padding);
  conv.dilation = *std::move(dilation);
  conv.groups = *groups;
  conv.is_transposed = *transposed;
  return true;
}

bool read_wanted(const Argument& mask, Convolution& conv) {
  const auto* list = std::get_if<ArgList>(&mask.value);
  if (list == nullptr || list->size() != conv.wanted.size()) return false;
  for (size_t i = 0; i < list->size(); ++i) {
    const auto* wanted = std::get_if<bool>(&(*list)[i].value);
    if (wanted == nullptr) return false;
    conv.wanted[i] = *wanted;
  }
  return true;
}

SymExpr axis(size_t number) { return SymExpr::symbol(axis_name(number)); }

// Axes of a contraction as they are handed out: those of the result, then the reduced ones.
class Axes {
 public:
  SymExpr result(SymExpr extent) {
    shape.push_back(std::move(extent));
    return axis(shape.size() - 1);
  }
  // After all those of the result.
  SymExpr sum(SymExpr extent) {
    reduced.push_back(std::move(extent));
    return axis(shape.size() + reduced.size() - 1);
  }

  Shape shape, reduced;
};

// [o, c, ..] with groups as a dimension of their own in front.
Value* cut_groups(Graph& graph, const Convolution& conv) {
  const Shape& weight = conv.weight->type().shape;
  if (conv.groups == 1) return conv.weight;
  Shape cut{conv.groups, SymExpr::floordiv(weight[0], conv.groups)};
  cut.insert(cut.end(), weight.begin() + 1, weight.end());
  return graph.reshape(conv.weight, std::move(cut));
}

SymExpr channels_of_small(const Convolution& conv) {  // of a group
  return SymExpr::floordiv(conv.weight->type().shape[0], conv.groups);
}

Value* merge_channels(Graph& graph, const Convolution& conv, Value* image) {
  if (conv.groups == 1) return image;
  Shape merged = image->type().shape;
  const SymExpr channels = merged.back();
  merged.pop_back();
  merged.back() *= channels;
  return graph.reshape(image, std::move(merged));
}

Value* filled_with_zeros(Graph& graph, Value* image, size_t dim, int64_t before,
                         const SymExpr& extent) {
  if (before == 0 && image->type().shape[dim] == extent) return image;
  return graph.pad(image, static_cast<int64_t>(dim), before, extent, Attr(0.0));
}

// How elements of the large image along a dimension meet those of the small one, where the
// windows' elements k are m * stride + phase: element (row + skipped) * stride + phase - padding
// meets the elements row + skipped - m * dilation of the small one, which is padded such that
// all of them are there.
struct Phases {
  SymExpr terms;        // how many m there are, at most
  SymExpr rows;         // how many rows
  int64_t skipped = 0;  // rows that lie in the padding
  int64_t before = 0;   // zeros in front of the small image
  SymExpr filled;       // its extent with all zeros
  SymExpr reach;        // of the windows: place of m = 0 in a filled row
};

Phases phases_of(const Convolution& conv, size_t d, const SymExpr& large, const SymExpr& small) {
  const int64_t stride = conv.stride[d], padding = conv.padding[d];
  Phases phases;
  phases.terms =
      stride == 1 ? conv.window(d) : SymExpr::floordiv(conv.window(d) + (stride - 1), stride);
  phases.skipped = padding / stride;
  if (stride == 1) {
    phases.rows = large;
  } else if (padding == 0 && large == small * stride) {
    phases.rows = small;
  } else {
    phases.rows = SymExpr::floordiv(large + (padding - 1), stride) + 1 - phases.skipped;
  }
  phases.reach = (phases.terms - 1) * conv.dilation[d];
  phases.before = phases.reach.as_constant().value_or(0) - phases.skipped;
  phases.filled = phases.rows + phases.reach;
  return phases;
}

// Whether sizes of the image and of the result are expressions that follow from each other. The
// sizes of an image whose trace has found that a symbolic size is 1 are numbers, those of what is
// computed from it are expressions still.
bool are_sizes_related(const Convolution& conv, const Shape& result) {
  const Shape& image = conv.image->type().shape;
  const Shape &large = conv.is_transposed ? result : image,
              &small = conv.is_transposed ? image : result;
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    if (large[d + 2].is_constant() != small[d + 2].is_constant()) return false;
    const bool is_axis = conv.stride[d] == 1 && conv.window(d).equals_constant(1);
    if (is_axis && !(large[d + 2] - small[d + 2]).is_constant()) return false;
  }
  return true;
}

}  // namespace

bool is_convolution_call(const Node& node) {
  return node.op() == Op::kExtern && node.extern_call().name == kName;
}

bool is_convolution_gradient_call(const Node& node) {
  return node.op() == Op::kExtern && node.extern_call().name == kGradientName;
}

std::optional<Convolution> convolution_of(const Node& node) {
  const ExternCall& call = node.extern_call();
  if (!call.kwargs.empty()) return std::nullopt;
  const std::span<const Argument> args = call.args;
  Convolution found{};
  if (is_convolution_call(node)) {
    if (args.size() != 9) return std::nullopt;
    found.image = operand_of(node, args[0]);
    found.weight = operand_of(node, args[1]);
    found.bias = operand_of(node, args[2]);
  } else {
    if (args.size() != 11 || !read_wanted(args[10], found)) return std::nullopt;
    found.gradient = operand_of(node, args[0]);
    found.image = operand_of(node, args[1]);
    found.weight = operand_of(node, args[2]);
    if (found.gradient == nullptr) return std::nullopt;
  }
  if (found.image == nullptr || found.weight == nullptr ||
      !read_windows(args.subspan(is_convolution_call(node) ? 3 : 4), found))
    return std::nullopt;
  const Value* result = found.gradient == nullptr ? node.result() : found.gradient;
  if (!are_sizes_related(found, result->type().shape)) return std::nullopt;
  return found;
}

Numbers to_channels_last(size_t rank) {
  Numbers dims{0};
  for (size_t d = 2; d < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  dims.push_back(1);
  return dims;
}

Numbers from_channels_last(size_t rank) {
  Numbers dims{0, static_cast<int64_t>(rank) - 1};
  for (size_t d = 1; d + 1 < rank; ++d) dims.push_back(static_cast<int64_t>(d));
  return dims;
}

Shape channels_last_shape(const Shape& shape) {
  Shape result;
  for (const int64_t dim : to_channels_last(shape.size()))
    result.push_back(shape[static_cast<size_t>(dim)]);
  return result;
}

bool has_no_element(const Value& value) {
  const Shape& shape = value.type().shape;
  return std::any_of(shape.begin(), shape.end(),
                     [](const SymExpr& size) { return size.equals_constant(0); });
}

bool is_image_seen(const Graph& graph, const Value& value) {
  if (graph.is_output(&value)) return true;
  return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
    if (user->op() == Op::kExtern)
      return !is_convolution_call(*user) && !is_convolution_gradient_call(*user);
    return op_info(user->op()).op_class == OpClass::kIndexMap &&
           is_image_seen(graph, *user->result());
  });
}

int64_t expected_pixels(const Graph& graph, const Value& image) {
  const Shape& shape = image.type().shape;
  SymExpr pixels = shape[0];
  for (size_t d = 2; d < shape.size(); ++d) pixels *= shape[d];
  return graph.expected(pixels);
}

bool are_weights_worth_packing(const Graph& graph, const Value& weight, const Value& image) {
  return is_static_value(weight) || expected_pixels(graph, image) >= kLeastPixels;
}

bool is_channels_last(Value* image) {
  static constexpr int kMostSteps = 32;
  Value* at = image;
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
      return operand->type().shape == image->type().shape;
    });
    if (same == operands.end()) return false;
    at = *same;
  }
  return false;
}

Value* filled_image(Graph& graph, const Convolution& conv, Value* large, const Shape& small) {
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    const SymExpr needed =
        (small[d + 1] - 1) * conv.stride[d] + (conv.window(d) - 1) * conv.dilation[d] + 1;
    const auto spare = (large->type().shape[d + 1] - needed).as_constant();
    if (conv.padding[d] == 0 && spare && *spare >= 0) {
      // An axis alone goes over all of a dimension; what a transposed convolution added to it is
      // seen by no window.
      const bool is_axis = conv.stride[d] == 1 && conv.window(d).equals_constant(1);
      if (is_axis && *spare > 0)
        large = graph.slice(large, static_cast<int64_t>(d) + 1, 0, needed, 1);
      continue;
    }
    // Of unknown sizes and steps nobody knows how much of the border no window reaches.
    const SymExpr whole = large->type().shape[d + 1] + 2 * conv.padding[d];
    if (conv.padding[d] == 0 && !spare) continue;
    large = filled_with_zeros(graph, large, d + 1, conv.padding[d], spare ? needed : whole);
  }
  return large;
}

Value* small_image(Graph& graph, const Convolution& conv, Value* filled, const Shape& small,
                   DType dtype) {
  const bool has_groups = conv.groups > 1;
  const Shape& weight = conv.weight->type().shape;
  Axes axes;
  Shape lhs{axes.result(small[0])}, rhs, within;
  for (size_t d = 0; d < conv.image_rank(); ++d)
    lhs.push_back(axes.result(small[d + 1]) * conv.stride[d]);
  SymExpr first_channel = 0;
  if (has_groups) {
    rhs.push_back(axes.result(conv.groups));
    first_channel = rhs.back() * weight[1];
  }
  rhs.push_back(axes.result(channels_of_small(conv)));
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    within.push_back(axes.sum(conv.window(d)));
    if (!conv.window(d).equals_constant(1)) lhs[d + 1] += within.back() * conv.dilation[d];
  }
  const SymExpr channel = axes.sum(weight[1]);
  lhs.push_back(first_channel + channel);
  rhs.push_back(channel);
  rhs.insert(rhs.end(), within.begin(), within.end());
  Value* sums = graph.contract(filled, cut_groups(graph, conv), std::move(lhs), std::move(rhs),
                               axes.reduced, axes.shape, dtype);
  return merge_channels(graph, conv, sums);
}

bool has_large_image(const Convolution& conv, const Shape& large, const Shape& small) {
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    if (!conv.window(d).is_constant()) return false;
    if (conv.stride[d] == 1) continue;
    if (conv.dilation[d] != 1) return false;
    const bool is_known = large[d + 1].is_constant();
    if (!is_known && (conv.padding[d] != 0 || !(large[d + 1] == small[d + 1] * conv.stride[d])))
      return false;
  }
  return true;
}

namespace {

// The large image of a small one that is padded, before the padding is cut off.
class LargeImage {
 public:
  LargeImage(Graph& graph, const Convolution& conv, Value* filled, std::vector<Phases> phases,
             DType dtype)
      : graph_(graph), conv_(conv), filled_(filled), phases_(std::move(phases)), dtype_(dtype),
        weight_(cut_groups(graph, conv)), first_dim_(conv.groups > 1 ? 3 : 2) {}

  // All phases in one contraction where they have equally many terms, else one for each that has
  // any.
  Value* compute() {
    bool are_equal = true;
    for (size_t d = 0; d < conv_.image_rank(); ++d)
      are_equal &= *conv_.window(d).as_constant() % conv_.stride[d] == 0;
    return are_equal ? all_phases() : interleaved(0, weight_);
  }

 private:
  Value* all_phases() {
    Shape cut(weight_->type().shape.begin(),
              weight_->type().shape.begin() + static_cast<ptrdiff_t>(first_dim_));
    Shape whole{filled_->type().shape[0]};
    for (size_t d = 0; d < conv_.image_rank(); ++d) {
      cut.push_back(phases_[d].terms);
      if (conv_.stride[d] > 1) cut.emplace_back(conv_.stride[d]);
      whole.push_back(phases_[d].rows * conv_.stride[d]);
    }
    whole.push_back(conv_.weight->type().shape[1] * conv_.groups);
    Value* image = contraction(graph_.reshape(weight_, std::move(cut)), true);
    return graph_.reshape(image, std::move(whole));
  }

  // With weights whose dimensions before the d-th are cut down to a phase's.
  Value* interleaved(size_t d, Value* weight) {
    if (d == conv_.image_rank()) return merge_channels(graph_, conv_, contraction(weight, false));
    const int64_t stride = conv_.stride[d], window = *conv_.window(d).as_constant();
    if (stride == 1) return interleaved(d + 1, weight);
    std::vector<Value*> phases;
    Shape shape;
    for (int64_t phase = 0; phase < std::min(stride, window); ++phase) {
      const int64_t terms = (window - phase + stride - 1) / stride;
      Value* of_phase =
          graph_.slice(weight, static_cast<int64_t>(first_dim_ + d), phase, terms, stride);
      Value* image = interleaved(d + 1, of_phase);
      shape = image->type().shape;
      Shape apart = shape;
      apart.insert(apart.begin() + static_cast<ptrdiff_t>(d) + 2, SymExpr(1));
      phases.push_back(graph_.reshape(image, std::move(apart)));
    }
    const auto dim = static_cast<int64_t>(d) + 2;
    Value* image = phases.size() == 1 ? phases.front() : graph_.cat(phases, dim);
    // Where the windows leave gaps.
    image = filled_with_zeros(graph_, image, d + 2, 0, stride);
    shape[d + 1] *= stride;
    return graph_.reshape(image, std::move(shape));
  }

  // `weight`: [group, o, c, (terms, phase)..]; without phases the terms of one.
  Value* contraction(Value* weight, bool has_phases) {
    const SymExpr of_group = conv_.weight->type().shape[1];
    Axes axes;
    Shape lhs{axes.result(filled_->type().shape[0])}, rhs, phase_axes, terms;
    for (size_t d = 0; d < conv_.image_rank(); ++d) {
      lhs.push_back(axes.result(phases_[d].rows));
      if (has_phases && conv_.stride[d] > 1) phase_axes.push_back(axes.result(conv_.stride[d]));
    }
    SymExpr group = 0;
    if (conv_.groups > 1) {
      group = axes.result(conv_.groups);
      rhs.push_back(group);
    }
    const SymExpr of_large = axes.result(of_group);
    size_t dim = first_dim_;
    for (size_t d = 0; d < conv_.image_rank(); ++d) {
      const SymExpr count = weight->type().shape[dim];
      dim += has_phases && conv_.stride[d] > 1 ? 2 : 1;
      terms.push_back(axes.sum(count));
      if (!count.equals_constant(1)) lhs[d + 1] -= terms[d] * conv_.dilation[d];
      lhs[d + 1] += phases_[d].reach;
    }
    const SymExpr of_small = axes.sum(channels_of_small(conv_));
    lhs.push_back(group * channels_of_small(conv_) + of_small);
    rhs.push_back(of_small);
    rhs.push_back(of_large);
    size_t phase = 0;
    for (size_t d = 0; d < conv_.image_rank(); ++d) {
      rhs.push_back(terms[d]);
      if (has_phases && conv_.stride[d] > 1) rhs.push_back(phase_axes[phase++]);
    }
    return graph_.contract(filled_, weight, std::move(lhs), std::move(rhs), axes.reduced,
                           axes.shape, dtype_);
  }

  Graph& graph_;
  const Convolution& conv_;
  Value* filled_;
  const std::vector<Phases> phases_;
  const DType dtype_;
  Value* weight_;
  const size_t first_dim_;  // of the weights' dimensions of windows
};

}  // namespace

Value* large_image(Graph& graph, const Convolution& conv, Value* small, const Shape& large,
                   DType dtype) {
  std::vector<Phases> phases;
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    phases.push_back(phases_of(conv, d, large[d + 1], small->type().shape[d + 1]));
    small = filled_with_zeros(graph, small, d + 1, phases[d].before, phases[d].filled);
  }
  Value* image = LargeImage(graph, conv, small, phases, dtype).compute();
  for (size_t d = 0; d < conv.image_rank(); ++d) {
    const int64_t start = conv.padding[d] - phases[d].skipped * conv.stride[d];
    if (start == 0 && image->type().shape[d + 1] == large[d + 1]) continue;
    image = graph.slice(image, static_cast<int64_t>(d) + 1, start, large[d + 1], 1);
  }
  return image;
}

namespace {

// Parts of a sum over images and their pixels: so many images, or so many rows of one.
struct Parts {
  std::optional<int64_t> images;  // of a part; nothing: all, whose number is not known
  std::optional<int64_t> rows;    // nothing: all
};

int64_t least_divisor(int64_t number, int64_t from) {
  for (int64_t divisor = std::max<int64_t>(1, from); divisor < number; ++divisor)
    if (number % divisor == 0) return divisor;
  return number;
}

int64_t largest_divisor(int64_t number, int64_t up_to) {
  for (int64_t divisor = std::min(number, up_to); divisor > 1; --divisor)
    if (number % divisor == 0) return divisor;
  return 1;
}

// `pixels`: the extents of an image that is summed over; `most_sums`: parts that may be stored.
Parts choose_parts(const Graph& graph, const SymExpr& images, const Shape& pixels,
                   int64_t most_parts) {
  int64_t of_row = 1;
  for (size_t d = 1; d < pixels.size(); ++d) of_row *= graph.expected(pixels[d]);
  const int64_t of_image = std::max<int64_t>(1, graph.expected(pixels[0]) * of_row);
  const auto count = images.as_constant();
  Parts parts;
  if (!count) {
    const bool is_worth_it = of_image >= kLeastTerms && graph.expected(images) <= most_parts;
    if (is_worth_it) parts.images = 1;
    return parts;
  }
  parts.images = least_divisor(*count, (kLeastTerms + of_image - 1) / of_image);
  while (*count / *parts.images > most_parts)
    parts.images = least_divisor(*count, *parts.images + 1);
  const auto rows = pixels[0].as_constant();
  if (*parts.images > 1 || !rows || of_image <= kMostTerms) return parts;
  parts.rows = largest_divisor(*rows, std::max<int64_t>(1, kMostTerms / of_row));
  while (*rows / *parts.rows * *count > most_parts && *parts.rows < *rows)
    parts.rows = least_divisor(*rows, *parts.rows + 1);
  return parts;
}

// [part.., window.., group, a, b] summed over its parts, as weights are.
Value* as_weights(Graph& graph, const Convolution& conv, Value* sums, size_t parts, bool o_last) {
  Numbers dims;
  for (size_t d = 0; d < parts; ++d) dims.push_back(static_cast<int64_t>(d));
  if (!dims.empty()) sums = graph.reduce(Op::kSum, sums, dims, false);
  const auto spatial = static_cast<int64_t>(conv.image_rank());
  const int64_t groups = conv.groups > 1 ? 1 : 0, last = spatial + groups + 1;
  Numbers order;
  if (groups > 0) order.push_back(spatial);
  order.push_back(o_last ? last : last - 1);
  order.push_back(o_last ? last - 1 : last);
  for (int64_t d = 0; d < spatial; ++d) order.push_back(d);
  return graph.reshape(graph.permute(sums, std::move(order)), conv.weight->type().shape);
}

}  // namespace

Value* weight_sums(Graph& graph, const Convolution& conv, Value* large, Value* small, DType dtype) {
  const size_t spatial = conv.image_rank();
  const Shape& weight = conv.weight->type().shape;
  const Shape of_large = large->type().shape, of_small = small->type().shape;
  const bool is_dense =
      std::all_of(conv.stride.begin(), conv.stride.end(), [](int64_t by) { return by == 1; });
  const bool is_wide = weight[1].as_constant().value_or(0) >= kLeastColumns;
  // Without strides windows may as well go over the small image. The gradient of the image reads it
  // in this way too, and the large one is read as it lies.
  const bool goes_over_small = is_dense && weight[1].as_constant().value_or(0) >= kTileRows &&
                               has_large_image(conv, of_large, of_small);
  Shape pixels;
  for (size_t d = 0; d < spatial; ++d)
    pixels.push_back(goes_over_small ? of_large[d + 1] : of_small[d + 1]);
  if (goes_over_small) {
    for (size_t d = 0; d < spatial; ++d) {
      const Phases phases = phases_of(conv, d, of_large[d + 1], of_small[d + 1]);
      small = filled_with_zeros(graph, small, d + 1, phases.before, phases.filled);
    }
  } else {
    large = filled_image(graph, conv, large, of_small);
  }
  const int64_t most_parts =
      std::max<int64_t>(1, (graph.expected(product(of_large)) + graph.expected(product(of_small))) /
                               std::max<int64_t>(1, graph.expected(product(weight))));
  const Parts cut = choose_parts(graph, of_large[0], pixels, most_parts);

  Axes axes;
  size_t parts = 0;
  SymExpr image = 0, row = 0;
  if (cut.images) {
    image = axes.result(SymExpr::floordiv(of_large[0], *cut.images)) * *cut.images;
    ++parts;
  }
  if (cut.rows) {
    row = axes.result(SymExpr::floordiv(pixels[0], *cut.rows)) * *cut.rows;
    ++parts;
  }
  Shape within;
  for (size_t d = 0; d < spatial; ++d) within.push_back(axes.result(conv.window(d)));
  SymExpr group = 0;
  if (conv.groups > 1) group = axes.result(conv.groups);
  const SymExpr small_channels = channels_of_small(conv);
  const SymExpr first = axes.result(is_wide ? small_channels : weight[1]);
  const SymExpr second = axes.result(is_wide ? weight[1] : small_channels);
  if (!cut.images)
    image = axes.sum(of_large[0]);
  else if (*cut.images > 1)
    image += axes.sum(*cut.images);
  Shape large_index{image}, small_index{image};
  for (size_t d = 0; d < spatial; ++d) {
    SymExpr at;
    if (d == 0 && cut.rows) {
      at = row + axes.sum(*cut.rows);
    } else {
      at = axes.sum(pixels[d]);
    }
    const bool is_one = conv.window(d).equals_constant(1);
    const SymExpr moved = is_one ? SymExpr(0) : within[d] * conv.dilation[d];
    if (goes_over_small) {
      large_index.push_back(at);
      small_index.push_back(at - moved + (conv.window(d) - 1) * conv.dilation[d]);
    } else {
      large_index.push_back(at * conv.stride[d] + moved);
      small_index.push_back(at);
    }
  }
  large_index.push_back(group * weight[1] + (is_wide ? second : first));
  small_index.push_back(group * small_channels + (is_wide ? first : second));
  Value* sums = is_wide ? graph.contract(small, large, std::move(small_index),
                                         std::move(large_index), axes.reduced, axes.shape, dtype)
                        : graph.contract(large, small, std::move(large_index),
                                         std::move(small_index), axes.reduced, axes.shape, dtype);
  return as_weights(graph, conv, sums, parts, !is_wide);
}

}  // namespace mlcc::graph
