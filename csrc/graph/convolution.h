// Calls of convolutions and of their gradients, and the contractions that they are over images
// whose channels are last.
//
// Windows of weights [o, c / groups, ..] relate a large image [n, .., c] to a small one [n, .., o]:
// element p of the small one meets the elements p * stride + k * dilation - padding of the large
// one. A convolution computes the small one, its gradient the large one; transposed ones the other
// way round.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

// Channels of a group below which most of a tile's columns would be idle.
constexpr int64_t kLeastColumns = 16;

struct Convolution {
  Value *image, *weight;
  Value* bias = nullptr;      // of a convolution, if it has any
  Value* gradient = nullptr;  // of its result, where gradients are asked for
  std::vector<int64_t> stride, padding, dilation;
  int64_t groups = 1;
  bool is_transposed = false;
  std::array<bool, 3> wanted{};  // gradients of the image, the weights, the bias

  // Dimensions of an image beside batch and channels.
  size_t image_rank() const { return weight->type().shape.size() - 2; }
  SymExpr window(size_t d) const { return weight->type().shape[d + 2]; }
};

bool is_convolution_call(const Node& node);  // aten.convolution
bool is_convolution_gradient_call(const Node& node);

// What such a call says; nothing where a part of it is not known.
std::optional<Convolution> convolution_of(const Node& node);

// The dimensions [0, 2, .., 1] that bring channels last, and those that bring them back.
std::vector<int64_t> to_channels_last(size_t rank);
std::vector<int64_t> from_channels_last(size_t rank);

std::vector<SymExpr> channels_last_shape(const std::vector<SymExpr>& shape);

bool has_no_element(const Value& value);

// Whether an image lies channels-last, or is computed from one that does.
bool is_channels_last(Value* image);
// Whether somebody gets a value as it lies in memory who is no convolution. One by itself, of
// channels-first images to such, is no faster than a library's: the layout takes what it gains.
bool is_image_seen(const Graph& graph, const Value& value);

// Pixels of all images, channels first, that are to be expected.
int64_t expected_pixels(const Graph& graph, const Value& image);

// Whether weights that so many pixels are multiplied with are worth a copy in the order that tiles
// read: they are static, or the copy is little of the work of each call.
bool are_weights_worth_packing(const Graph& graph, const Value& weight, const Value& image);

// A large image padded with zeros such that no window of a small one of `small`, a shape with
// channels last, reaches beyond it.
Value* filled_image(Graph& graph, const Convolution& conv, Value* large,
                    const std::vector<SymExpr>& small);

// The small image of a large one that is padded. All images have their channels last.
Value* small_image(Graph& graph, const Convolution& conv, Value* filled,
                   const std::vector<SymExpr>& small, DType dtype);

// Whether a large image can be computed from contractions over the small one: where the stride is
// not 1, one for each phase of the elements of the large one, whose sizes have to be known then.
bool has_large_image(const Convolution& conv, const std::vector<SymExpr>& large,
                     const std::vector<SymExpr>& small);
Value* large_image(Graph& graph, const Convolution& conv, Value* small,
                   const std::vector<SymExpr>& large, DType dtype);

// Sums over all windows of the products of both images: the gradient of the weights.
Value* weight_sums(Graph& graph, const Convolution& conv, Value* large, Value* small, DType dtype);

}  // namespace mlcc::graph
