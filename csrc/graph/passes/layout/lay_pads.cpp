#include "graph/passes/layout/lay_pads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/inference.h"
#include "graph/rewriter.h"

namespace mlcc::graph {
namespace {

// Channels that take longer to be brought last, one between the others, than to be padded as they
// lie. The figures: docs/decisions/0032-padded-in-place.md.
constexpr int64_t kFewChannels = 4;
// Of an element: pairs of shorter ones are multiplied at once.
constexpr int64_t kWholeBytes = 4;

bool is_pad(const Value& value) {
  return value.producer() != nullptr && value.producer()->op() == Op::kPad;
}

bool rewrite(const Rewriter& rewriter, Node* node, Value* padded) {
  if (!is_pad(*padded)) return rewriter.no_match(*node, "it reads no pad");
  const Value* image = padded;
  while (is_pad(*image)) image = image->producer()->operand(0);
  if (image->producer() == nullptr || image->producer()->op() != Op::kPermute)
    return rewriter.no_match(*node, "what is padded is not permuted");
  const auto& dims = image->producer()->attr<std::vector<int64_t>>("dims");
  const TensorType& type = padded->type();
  const auto channels = type.shape.back().as_constant();
  if (dims.size() < 3 || dims.back() != 1 || !channels || *channels > kFewChannels)
    return rewriter.no_match(*node, "it has many channels, or they do not come last");
  if (dtype_size(type.dtype) < kWholeBytes)
    return rewriter.no_match(*node, "pairs of channels are read");
  if (!image->producer()->operand(0)->type().strides.empty())
    return rewriter.no_match(*node, "the image lies in another order");
  const auto reads_anywhere = [](const Node* user) { return user->op() == Op::kContract; };
  if (!type.strides.empty() || rewriter.graph().is_output(padded) ||
      !std::all_of(padded->users().begin(), padded->users().end(), reads_anywhere))
    return rewriter.no_match(*node, "its place in memory matters to others");
  if (!rewriter.may_rewrite()) return false;
  std::vector<SymExpr> before(dims.size()), strides;
  for (size_t d = 0; d < dims.size(); ++d) before[static_cast<size_t>(dims[d])] = type.shape[d];
  const std::vector<SymExpr> dense = dense_strides(before);
  for (const int64_t dim : dims) strides.push_back(dense[static_cast<size_t>(dim)]);
  rewriter.graph().set_strides(padded, std::move(strides));
  return true;
}

}  // namespace

bool lay_pads(Graph& graph, const LayPadsOptions& options) {
  const Rewriter rewriter(graph, options);
  bool has_changed = false;
  for (Node* node : graph.nodes())
    if (node->op() == Op::kContract) has_changed |= rewrite(rewriter, node, node->operand(0));
  return has_changed;
}

}  // namespace mlcc::graph
