// What planning asks of single nodes: in which kind of kernel they run, and over what.
#pragma once

#include <vector>

#include "graph/graph.h"

namespace mlcc::fusion {

bool is_indirect(const graph::Node& node);
bool is_update(const graph::Node& node);

// Whether a copy on a CPU has short elements that make up words of 32 bits along its last
// dimension, as packed operands of dot products have it: a kernel that only copies moves these as
// one.
bool copies_words(const graph::Node& node);

// Updates, scans and gradients of attention have a kernel of their own: what they write is read at
// other places than where it is computed, and in another order. So have copies of words.
bool is_alone(const graph::Node& node);

// What begins a group of its own, whose results come in tiles.
bool comes_in_tiles(const graph::Node& node);

// Of its axes so many, the first ones, are not reduced.
size_t num_kept_axes(const graph::Node& node);

// Pointwise ops, cat and pad: values that any reader may compute for itself at any index.
bool is_inlinable(const graph::Node& node);

// The shape a node iterates over.
std::vector<SymExpr> iteration_shape(const graph::Node& node);

// Whether each element of one shape stands for one of the other. Of no elements that says nothing:
// what is reduced from them has its own.
bool has_as_many(const std::vector<SymExpr>& shape, const std::vector<SymExpr>& other);

// How often `reader` reads elements of `value`, which it reads itself or through free nodes. An
// update goes once over each operand.
SymExpr points_of_read(const graph::Node& reader, const graph::Value& value);

// Whether a take computes the value: what a take of it fetches along one dimension is fetched where
// it is taken along another.
bool is_taken(const graph::Value& value);
// Whether the node is a take that takes and gathers alone read, and as what they take from.
bool is_only_taken(const graph::Node& node);

// Whether no tensor of more than one element stands behind the value, and few ops: masks and
// arithmetic with positions.
bool is_cheap_number(const graph::Value& value);

// Whether a node reads the value on another device than that where it lies.
bool is_read_elsewhere(const graph::Value& value, const graph::Node& reader);

// Whether an extern call writes through this view.
bool is_write_window(const graph::Node& view);

// Of the index tensors of a take, for an element of its result.
std::vector<SymExpr> take_index_position(const graph::Node& node,
                                         const std::vector<SymExpr>& position);

}  // namespace mlcc::fusion
