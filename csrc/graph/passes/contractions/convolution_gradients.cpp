#include "graph/passes/contractions/convolution_gradients.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "graph/convolution.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

// Elements of a window and channels that rows of a tile go over, at least.
constexpr int64_t kLeastRows = 6;
// Pixels of all images together, from which on a call that is left gets them channels-last. The
// figures: docs/decisions/0025-contractions.md.
constexpr int64_t kPixelsChannelsLast = 512;

enum Gradient : size_t { kOfImage, kOfWeight, kOfBias };

bool is_used(const Graph& graph, const Value& value) {
  return !value.users().empty() || graph.is_output(&value);
}

class Rewrite {
 public:
  Rewrite(const Rewriter& rewriter, const PassOptions& options, Node* node)
      : rewriter_(rewriter), graph_(rewriter.graph()), options_(options), node_(node) {}

  bool run() {
    const auto conv = convolution_of(*node_);
    if (!conv) return rewriter_.no_match(*node_, "its windows are not known");
    conv_ = *conv;
    for (size_t i = 0; i < conv_.wanted.size(); ++i)
      wanted_[i] = conv_.wanted[i] && is_used(graph_, *node_->result(i));
    if (conv_.gradient->type().device.kind != DeviceKind::kCpu)
      return rewriter_.no_match(*node_, "another device");
    const DType dtype = conv_.image->type().dtype;
    const auto accumulator = accumulator_dtype(dtype, dtype);
    if (!accumulator || !is_float(dtype) || conv_.weight->type().dtype != dtype ||
        conv_.gradient->type().dtype != dtype)
      return rewriter_.no_match(*node_, "no code for its dtypes");
    if (options_.tiles->columns(*accumulator) == 0)
      return rewriter_.no_match(*node_, "no vectors to compute it in");
    for (const Value* operand : {conv_.image, conv_.weight, conv_.gradient})
      if (has_no_element(*operand)) return rewriter_.no_match(*node_, "it has no elements");
    if (!are_constant(conv_.weight->type().shape))
      return rewriter_.no_match(*node_, "its windows or channels are not known");
    dtype_ = dtype;
    accumulator_ = *accumulator;
    const bool weight_stays = wanted_[kOfWeight] && !makes_weight();
    const bool image_stays = wanted_[kOfImage] && !makes_image();
    if (weight_stays ||
        image_stays)  // if only one of them does, this tells of the call that is left
      rewriter_.no_match(*node_, "a library computes it faster");
    if ((weight_stays || !wanted_[kOfWeight]) && (image_stays || !wanted_[kOfImage])) return false;
    return rewriter_.replace_all_by_new(node_, [&] { return make(image_stays, weight_stays); });
  }

 private:
  int64_t channels(size_t dim) const {  // of a group: 0 of the small image, 1 of the large one
    const int64_t all = *conv_.weight->type().shape[dim].as_constant();
    return dim == 0 ? all / conv_.groups : all;
  }

  bool makes_weight() const {
    // Pixels lie side by side in neither image: terms would be multiplied one by one.
    if (options_.tiles->terms && options_.tiles->terms(dtype_, dtype_) > 1) return false;
    int64_t rows = channels(1);
    rows *= *conv_.window(conv_.image_rank() - 1).as_constant();
    const bool has_columns =
        channels(1) >= kLeastColumns || (channels(0) >= kLeastColumns && rows >= kLeastRows);
    return has_columns && channels(0) > 1;
  }

  bool makes_image() const {
    const bool is_large = !conv_.is_transposed;
    if (channels(is_large ? 1 : 0) < kLeastColumns) return false;
    if (is_large && !has_large_image(conv_, channels_last_shape(conv_.image->type().shape),
                                     channels_last_shape(conv_.gradient->type().shape)))
      return false;
    // Else it would be brought channels-last and back for this alone.
    if (!is_channels_last(conv_.gradient) && is_image_seen(graph_, *node_->result(kOfImage)))
      return false;
    return are_weights_worth_packing(graph_, *conv_.weight,
                                     is_large ? *conv_.gradient : *conv_.image);
  }

  std::vector<Value*> make(bool image_stays, bool weight_stays) {
    std::vector<Value*> results(conv_.wanted.size(), nullptr);
    if (image_stays || weight_stays) results = call(image_stays, weight_stays);
    const size_t rank = conv_.image->type().shape.size();
    Value* image = graph_.permute(conv_.image, to_channels_last(rank));
    Value* gradient = graph_.permute(conv_.gradient, to_channels_last(rank));
    if (wanted_[kOfImage] && !image_stays) {
      const Shape shape = image->type().shape;
      Value* result = conv_.is_transposed
                          ? small_image(graph_, conv_, filled_image(graph_, conv_, gradient, shape),
                                        shape, dtype_)
                          : large_image(graph_, conv_, gradient, shape, dtype_);
      results[kOfImage] = graph_.permute(result, from_channels_last(rank));
    }
    if (wanted_[kOfWeight] && !weight_stays) {
      Value *large = conv_.is_transposed ? gradient : image,
            *small = conv_.is_transposed ? image : gradient;
      results[kOfWeight] =
          graph_.cast(weight_sums(graph_, conv_, large, small, accumulator_), dtype_);
    }
    if (wanted_[kOfBias]) {
      std::vector<int64_t> dims;
      for (size_t d = 0; d + 1 < rank; ++d) dims.push_back(static_cast<int64_t>(d));
      results[kOfBias] = graph_.reduce(Op::kSum, gradient, std::move(dims), false);
    }
    return results;
  }

  // Images lie channels-last as those of kernels do, but few pixels channels-first, for which
  // libraries are several times as slow else. To turn an image of more takes longer than they lose.
  bool is_call_channels_last() const {
    return conv_.image_rank() > 1 &&
           expected_pixels(graph_, *conv_.gradient) >= kPixelsChannelsLast;
  }

  Value* copied(Value* image, bool channels_last) {
    if (!channels_last) return graph_.pointwise(Op::kCopy, {image});
    const size_t rank = image->type().shape.size();
    Value* last = graph_.pointwise(Op::kCopy, {graph_.permute(image, to_channels_last(rank))});
    return graph_.permute(last, from_channels_last(rank));
  }

  // The call for what is left to it.
  std::vector<Value*> call(bool image_stays, bool weight_stays) {
    ExternCall call = node_->extern_call();
    const bool wanted[] = {image_stays, weight_stays, false};
    auto& mask = std::get<ArgList>(call.args.back().value);
    std::vector<TensorType> types;
    for (size_t i = 0; i < mask.size(); ++i) {
      mask[i] = wanted[i];
      types.push_back(node_->result(i)->type());
      if (!wanted[i]) types.back().shape = {0};
      types.back().strides.clear();
    }
    std::vector<Value*> operands = node_->operands();
    const bool channels_last = is_call_channels_last();
    for (Value*& operand : operands)
      if (operand != conv_.weight) operand = copied(operand, channels_last);
    std::vector<Value*> results =
        graph_.extern_call(std::move(call), std::move(operands), std::move(types));
    for (size_t i = 0; i < results.size(); ++i) {
      if (!wanted[i]) results[i] = nullptr;
      // The call gives what the node's users may expect to lie otherwise.
      else if (!node_->result(i)->type().strides.empty())
        results[i] = graph_.pointwise(Op::kCopy, {results[i]});
    }
    return results;
  }

  const Rewriter& rewriter_;
  Graph& graph_;
  const PassOptions& options_;
  Node* node_;
  Convolution conv_{};
  std::array<bool, 3> wanted_{};
  DType dtype_ = DType::kF32, accumulator_ = DType::kF32;
};

}  // namespace

bool convolution_gradients(Graph& graph, const ConvolutionGradientOptions& options) {
  if (!options.tiles) return false;
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (is_convolution_gradient_call(*node)) has_changed |= Rewrite(rewriter, options, node).run();
  return has_changed;
}

}  // namespace mlcc::graph
