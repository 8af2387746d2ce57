#include "graph/attention_call.h"

#include <cmath>
#include <variant>
#include <vector>

#include "graph/arguments.h"
#include "graph/contraction.h"
#include "graph/strided_view.h"
#include "types/dtype.h"

namespace mlcc::graph {
namespace {

using Shape = std::vector<SymExpr>;

bool mask_fits(const AttentionCall& call) {
  const Shape wanted = {call.queries->type().shape[0], call.queries->type().shape[1],
                        call.queries->type().shape[2], call.keys->type().shape[2]};
  const Shape& shape = call.mask->type().shape;
  if (shape.size() > 4 || shape.size() < 2 || !is_float(call.mask->type().dtype)) return false;
  for (size_t d = 0; d < shape.size(); ++d) {
    const SymExpr& size = wanted[4 - shape.size() + d];
    if (!(shape[d] == size) && !shape[d].equals_constant(1)) return false;
  }
  return true;
}

// Apart from numbers of heads.
bool shapes_fit(const AttentionCall& call) {
  const Shape &q = call.queries->type().shape, &k = call.keys->type().shape,
              &v = call.values->type().shape;
  return q[0] == k[0] && k[0] == v[0] && k[1] == v[1] && k[2] == v[2] && q[3] == k[3] &&
         (call.mask == nullptr || mask_fits(call));
}

// The mask and the scale.
bool read_named(const Node& node, AttentionCall& call, std::optional<double>& scale) {
  for (const auto& [name, argument] : node.extern_call().kwargs) {
    if (std::holds_alternative<ArgNone>(argument.value)) continue;
    if (name == "attn_mask") {
      call.mask = operand_of(node, argument);
      if (call.mask == nullptr) return false;
    } else if (name == "scale") {
      scale = number_of(argument);
      if (!scale) return false;
    } else {
      return false;
    }
  }
  return true;
}

}  // namespace

std::optional<AttentionCall> read_attention_call(const Node& node, size_t first, size_t rest) {
  const auto& args = node.extern_call().args;
  if (args.size() < first + 3 || args.size() > rest + 2) return {};
  AttentionCall found{};
  found.queries = operand_of(node, args[first]);
  found.keys = operand_of(node, args[first + 1]);
  found.values = operand_of(node, args[first + 2]);
  std::optional<double> scale;
  if (args.size() > rest && number_of(args[rest]) != 0.0) return {};
  if (args.size() > rest + 1) {
    const auto* is_causal = std::get_if<bool>(&args[rest + 1].value);
    if (is_causal == nullptr) return {};
    found.is_causal = *is_causal;
  }
  if (!read_named(node, found, scale)) return {};
  for (const Value* value : {found.queries, found.keys, found.values})
    if (value == nullptr || value->kind() != ValueKind::kTensor || value->type().shape.size() != 4)
      return {};
  const auto width = found.queries->type().shape[3].as_constant();
  if (!width || *width == 0 || !shapes_fit(found)) return {};
  found.scale = scale.value_or(1 / std::sqrt(static_cast<double>(*width)));
  return found;
}

std::optional<int64_t> group_of_heads(const SymExpr& heads, const SymExpr& shared) {
  if (heads == shared) return 1;
  const auto all = heads.as_constant(), number = shared.as_constant();
  if (!all || !number || *number == 0 || *all % *number != 0) return {};
  return *all / *number;
}

std::string_view refusal(const AttentionCall& call, std::initializer_list<const Value*> others,
                         const TileOptions& tiles) {
  const TensorType& type = call.queries->type();
  if (type.device.kind != DeviceKind::kCpu) return "another device";
  const auto accumulator = accumulator_dtype(type.dtype, type.dtype);
  if (!accumulator || !is_float(*accumulator) || tiles.columns(*accumulator) == 0)
    return "no code for its dtype";
  std::vector<const Value*> alike = {call.keys, call.values};
  alike.insert(alike.end(), others);
  for (const Value* value : alike)
    if (value->type().dtype != type.dtype) return "several dtypes";
  const auto width = type.shape[3].as_constant(),
             columns = call.values->type().shape[3].as_constant();
  if (!columns || *width > kMostAttentionColumns || *columns > kMostAttentionColumns ||
      *columns == 0)
    return "heads are wide, or of unknown width";
  return {};
}

Value* scaled_and_masked(Graph& graph, const AttentionCall& call, Value* products, Value* mask) {
  const DType dtype = products->type().dtype;
  const Device device = products->type().device;
  Value* scores = graph.pointwise(Op::kMul, {products, graph.full({}, dtype, call.scale, device)});
  if (mask == nullptr) return scores;
  return graph.pointwise(Op::kAdd, {scores, graph.cast(mask, dtype)});
}

Value* with_dense_rows(Graph& graph, Value* value) {
  if (strided_view(value)->strides.back().equals_constant(1)) return value;
  return graph.pointwise(Op::kCopy, {value});
}

}  // namespace mlcc::graph
