#include "graph/strided_view.h"

#include "graph/index_map.h"
#include "graph/inference.h"

namespace mlcc::graph {
namespace {

using Sizes = std::vector<SymExpr>;

StridedView own_base(Value* value) {
  const TensorType& type = value->type();
  return {value, type.shape, type.strides.empty() ? dense_strides(type.shape) : type.strides, 0};
}

bool is_empty(const Sizes& shape) {
  for (const SymExpr& size : shape)
    if (size.equals_constant(0)) return true;
  return false;
}

// The strides under which `from`, lying in memory with `strides`, has shape `to`. Walks runs of
// dimensions that lie seamlessly behind each other, innermost first; each must be a product of
// whole dimensions of `to`. Sizes count as equal only if their expressions are.
std::optional<Sizes> reshaped_strides(const Sizes& from, const Sizes& strides, const Sizes& to) {
  if (is_empty(from) || from.empty()) return contiguous_strides(to);
  Sizes result(to.size());
  size_t next = to.size();  // dimensions from here on are done
  SymExpr run = 1;          // elements of the current run of `from`
  SymExpr unit = strides.back();
  for (size_t d = from.size(); d-- > 0;) {
    run = run * from[d];
    const bool continues =
        d > 0 && (from[d - 1].equals_constant(1) || strides[d - 1] == run * unit);
    if (continues) continue;
    SymExpr covered = 1;
    while (next > 0 && (!(covered == run) || to[next - 1].equals_constant(1))) {
      --next;
      result[next] = covered * unit;
      covered = covered * to[next];
    }
    if (!(covered == run)) return std::nullopt;
    if (d > 0) unit = strides[d - 1];
    run = 1;
  }
  if (next > 0) return std::nullopt;
  return result;
}

// The window of the node's result, given its operand's; nothing where strides cannot express it.
std::optional<StridedView> apply(const Node& node, const StridedView& operand) {
  StridedView view{operand.base, node.result()->type().shape, {}, operand.offset};
  if (node.op() == Op::kPermute) {
    for (const int64_t dim : node.attr<std::vector<int64_t>>("dims"))
      view.strides.push_back(operand.strides[static_cast<size_t>(dim)]);
  } else if (node.op() == Op::kExpand) {
    const size_t lead = view.shape.size() - operand.shape.size();
    view.strides.assign(lead, 0);
    for (size_t d = 0; d < operand.shape.size(); ++d) {
      const bool repeats = !(operand.shape[d] == view.shape[lead + d]);
      view.strides.push_back(repeats ? SymExpr(0) : operand.strides[d]);
    }
  } else if (node.op() == Op::kSlice) {
    const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    view.strides = operand.strides;
    view.offset = view.offset + node.attr<SymExpr>("start") * view.strides[dim];
    view.strides[dim] = view.strides[dim] * node.attr<int64_t>("step");
  } else if (node.op() == Op::kWindow) {
    const auto dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    view.strides = operand.strides;
    view.strides.push_back(view.strides[dim] * node.attr<int64_t>("dilation"));
    view.strides[dim] = view.strides[dim] * node.attr<int64_t>("step");
  } else if (node.op() == Op::kReshape) {
    auto strides = reshaped_strides(operand.shape, operand.strides, view.shape);
    if (!strides) return std::nullopt;
    view.strides = std::move(*strides);
  } else {
    return std::nullopt;
  }
  return view;
}

}  // namespace

std::optional<StridedView> strided_view(Value* value) {
  if (value->kind() != ValueKind::kTensor) return std::nullopt;
  // The chain of index maps above `value`, nearest first.
  std::vector<const Node*> chain;
  Value* base = value;
  while (const Node* producer = base->producer()) {
    const Op op = producer->op();
    if (!is_single_index_map(op) || op == Op::kFlip || op == Op::kSpread || op == Op::kExtend)
      break;
    chain.push_back(producer);
    base = producer->operand(0);
  }
  StridedView view = own_base(base);
  for (auto node = chain.rbegin(); node != chain.rend(); ++node) {
    auto next = apply(**node, view);
    view = next ? std::move(*next) : own_base((*node)->result());
  }
  return view;
}

bool is_dense_along(Value& value, size_t dim) {
  return strided_view(&value)->strides[dim].equals_constant(1);
}

}  // namespace mlcc::graph
