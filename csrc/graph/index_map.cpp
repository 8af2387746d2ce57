#include "graph/index_map.h"

#include <algorithm>

#include "support/error.h"

namespace mlcc::graph {
namespace {

using Index = std::vector<SymExpr>;

// A run of dimensions on both sides that hold the same elements: [from_begin, from_end) and
// [to_begin, to_end).
struct DimGroup {
  size_t from_begin, from_end, to_begin, to_end;
};

// Whether the side with product `a` should take its next dimension before the side with product
// `b`.
bool takes_next(const SymExpr& a, const SymExpr& b) {
  const auto ca = a.as_constant();
  const auto cb = b.as_constant();
  if (ca && cb) return *ca < *cb;
  return b.divide_exactly(a).has_value();
}

// Splits two shapes with equal products into the smallest groups with equal products; the last
// group takes what is left.
std::vector<DimGroup> match_dims(const Index& from, const Index& to) {
  std::vector<DimGroup> groups;
  size_t i = 0, j = 0;
  while (i < from.size() || j < to.size()) {
    DimGroup group{i, i, j, j};
    SymExpr a = 1, b = 1;
    if (i < from.size()) a = from[i++];
    if (j < to.size()) b = to[j++];
    while (!(a == b) && (i < from.size() || j < to.size())) {
      if (i < from.size() && (j >= to.size() || takes_next(a, b)))
        a = a * from[i++];
      else
        b = b * to[j++];
    }
    // Trailing ones belong to the last group.
    if (i == from.size())
      while (j < to.size() && to[j].equals_constant(1)) ++j;
    if (j == to.size())
      while (i < from.size() && from[i].equals_constant(1)) ++i;
    group.from_end = i;
    group.to_end = j;
    groups.push_back(group);
  }
  return groups;
}

Index slice_of(const Index& all, size_t begin, size_t end) {
  return Index(all.begin() + begin, all.begin() + end);
}

// The operand's element at place `at` before or behind it too, by the mode.
SymExpr extended(const SymExpr& at, const SymExpr& extent, const std::string& mode) {
  const SymExpr last = extent - 1;
  if (mode == "replicate") return SymExpr::min(SymExpr::max(at, 0), last);
  if (mode == "circular") return SymExpr::mod(at, extent);
  const SymExpr from_first = SymExpr::max(at, SymExpr(0) - at);
  return last - SymExpr::max(last - from_first, from_first - last);
}

// The place of element `k` of window `o` of those that are spread over `extent` elements.
SymExpr spread(const SymExpr& o, const SymExpr& k, const SymExpr& extent, const SymExpr& count,
               const SymExpr& size) {
  const SymExpr begin = SymExpr::floordiv(o * extent, count);
  if (size.equals_constant(1)) return begin;
  return SymExpr::min(begin + k, SymExpr::floordiv((o + 1) * extent - 1, count));
}

}  // namespace

bool is_single_index_map(Op op) {
  return op == Op::kPermute || op == Op::kExpand || op == Op::kReshape || op == Op::kSlice ||
         op == Op::kFlip || op == Op::kWindow || op == Op::kSpread || op == Op::kExtend;
}

std::span<Value* const> index_operands(const Node& node) {
  const std::span<Value* const> operands = node.operands();
  const bool is_update = op_info(node.op()).op_class == OpClass::kUpdate;
  return operands.subspan(1, operands.size() - (is_update ? 2 : 1));
}

std::vector<int64_t> inverse_permutation(const std::vector<int64_t>& dims) {
  std::vector<int64_t> inverse(dims.size());
  for (size_t i = 0; i < dims.size(); ++i)
    inverse[static_cast<size_t>(dims[i])] = static_cast<int64_t>(i);
  return inverse;
}

SymExpr linearize(const Index& index, const Index& strides) {
  MLCC_CHECK(index.size() == strides.size(), "linearize: rank of index and strides differ");
  SymExpr linear;
  for (size_t d = 0; d < index.size(); ++d) linear = linear + index[d] * strides[d];
  return linear;
}

Index delinearize(const SymExpr& linear, const Index& shape, const Assumptions& assumptions) {
  const Index strides = contiguous_strides(shape);
  Index index(shape.size());
  bool leading = true;  // the leading non-trivial dimension needs no mod
  for (size_t d = 0; d < shape.size(); ++d) {
    if (shape[d].equals_constant(1)) continue;
    SymExpr quotient = SymExpr::floordiv(linear, strides[d]);
    if (!leading) quotient = SymExpr::mod(quotient, shape[d]);
    leading = false;
    index[d] = assumptions.simplify(quotient);
  }
  return index;
}

Index reshape_index(const Index& index, const Index& from, const Index& to,
                    const Assumptions& assumptions) {
  Index result;
  for (const DimGroup& group : match_dims(from, to)) {
    const Index sub_from = slice_of(from, group.from_begin, group.from_end);
    const Index sub_to = slice_of(to, group.to_begin, group.to_end);
    const Index sub_index = slice_of(index, group.from_begin, group.from_end);
    if (sub_from == sub_to) {
      result.insert(result.end(), sub_index.begin(), sub_index.end());
      continue;
    }
    const Index part =
        delinearize(linearize(sub_index, contiguous_strides(sub_from)), sub_to, assumptions);
    result.insert(result.end(), part.begin(), part.end());
  }
  return result;
}

Index broadcast_index(const Index& shape, const Index& index) {
  MLCC_CHECK(shape.size() <= index.size(), "broadcast: operand has rank ", shape.size(),
             ", result ", index.size());
  Index result(shape.size());
  const size_t lead = index.size() - shape.size();
  for (size_t d = 0; d < shape.size(); ++d)
    if (!shape[d].equals_constant(1)) result[d] = index[lead + d];
  return result;
}

Access operand_access(const Node& node, const Index& index, const Assumptions& assumptions) {
  Value* operand = node.operand(0);
  const Index& shape = operand->type().shape;
  Index result(shape.size());
  if (node.op() == Op::kPermute) {
    const auto& dims = node.attr<std::vector<int64_t>>("dims");
    for (size_t d = 0; d < dims.size(); ++d) result[dims[d]] = index[d];
  } else if (node.op() == Op::kExpand) {
    result = broadcast_index(shape, index);
  } else if (node.op() == Op::kReshape) {
    result = reshape_index(index, node.result()->type().shape, shape, assumptions);
  } else if (node.op() == Op::kSlice) {
    result = index;
    const int64_t dim = node.attr<int64_t>("dim");
    result[dim] = node.attr<SymExpr>("start") + index[dim] * node.attr<int64_t>("step");
  } else if (node.op() == Op::kFlip) {
    result = index;
    for (const int64_t dim : node.attr<std::vector<int64_t>>("dims"))
      result[dim] = shape[dim] - 1 - index[dim];
  } else if (node.op() == Op::kWindow) {
    const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    result.assign(index.begin(), index.end() - 1);
    result[dim] =
        index[dim] * node.attr<int64_t>("step") + index.back() * node.attr<int64_t>("dilation");
  } else if (node.op() == Op::kSpread) {
    const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    const Index& windows = node.result()->type().shape;
    result.assign(index.begin(), index.end() - 1);
    result[dim] = assumptions.simplify(
        spread(index[dim], index.back(), shape[dim], windows[dim], windows.back()));
  } else if (node.op() == Op::kExtend) {
    const size_t dim = static_cast<size_t>(node.attr<int64_t>("dim"));
    result = index;
    result[dim] = assumptions.simplify(extended(index[dim] - node.attr<int64_t>("before"),
                                                shape[dim], node.attr<std::string>("mode")));
  } else {
    MLCC_UNREACHABLE("operand_access: ", op_info(node.op()).text, " is no single index map");
  }
  return {operand, std::move(result)};
}

Access resolve(Value* value, Index index, const Assumptions& assumptions) {
  Access access{value, std::move(index)};
  while (access.value->producer() != nullptr && is_single_index_map(access.value->producer()->op()))
    access = operand_access(*access.value->producer(), access.index, assumptions);
  return access;
}

}  // namespace mlcc::graph
