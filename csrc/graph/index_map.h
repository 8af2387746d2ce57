// Index maps read backwards: which element of an operand a given element of a result is.
//
// Indices are SymExprs over axis symbols; `assumptions` knows the axes' extents. Used by fusion (do
// two nodes meet at the same point?) and by lowering (what is loaded?).
#pragma once

#include <span>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

// One element of a value.
struct Access {
  Value* value;
  std::vector<SymExpr> index;
};

// True for permute, expand, reshape, slice, flip, window and extend: ops with one operand that move
// nothing. (cat has several operands, pad a number beside its own.)
bool is_single_index_map(Op op);

// The element of operand 0 that element `index` of the node's result is. `node` is a single index
// map.
Access operand_access(const Node& node, const std::vector<SymExpr>& index,
                      const Assumptions& assumptions);

// Follows single index maps until a value that is no such map's result.
Access resolve(Value* value, std::vector<SymExpr> index, const Assumptions& assumptions);

// The index into an operand of shape `shape` that broadcasts to a result read at `index`.
std::vector<SymExpr> broadcast_index(const std::vector<SymExpr>& shape,
                                     const std::vector<SymExpr>& index);

// The index tensors of a gather or an update.
std::span<Value* const> index_operands(const Node& node);

// The dims by which a permutation by `dims` is undone.
std::vector<int64_t> inverse_permutation(const std::vector<int64_t>& dims);

SymExpr linearize(const std::vector<SymExpr>& index, const std::vector<SymExpr>& strides);
std::vector<SymExpr> delinearize(const SymExpr& linear, const std::vector<SymExpr>& shape,
                                 const Assumptions& assumptions);
// `index` into a tensor of shape `from`, as an index into the same elements in row-major order with
// shape `to`.
std::vector<SymExpr> reshape_index(const std::vector<SymExpr>& index,
                                   const std::vector<SymExpr>& from, const std::vector<SymExpr>& to,
                                   const Assumptions& assumptions);

}  // namespace mlcc::graph
