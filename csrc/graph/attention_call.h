// The arguments that torch's calls for attention and for its gradient have in common.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

#include "graph/graph.h"
#include "graph/passes/options.h"

namespace mlcc::graph {

// What a tile of results may have, beside which registers and a first-level cache hold the rest.
constexpr int64_t kMostAttentionColumns = 256;

struct AttentionCall {
  Value *queries, *keys, *values;  // [batch, heads, length, width]
  Value* mask = nullptr;           // added to scores; may be null
  double scale = 1;
  bool is_causal = false;
  int64_t group = 1;  // heads of queries that share one of keys and values
};

// Of a call whose queries, keys and values stand from argument `first` on, and what has defaults
// from `rest` on: the share that is dropped, and whether it is causal. Nothing where something is
// dropped or shapes are other than attention has them; whether the numbers of heads fit is for the
// caller to see.
std::optional<AttentionCall> read_attention_call(const Node& node, size_t first, size_t rest);

// How many heads of queries share one of keys; nothing where they do not, or numbers are unknown.
std::optional<int64_t> group_of_heads(const SymExpr& heads, const SymExpr& shared);

// Why there is no code for the call; `others`: operands beside queries, keys and values that have
// their dtype as well. Empty: there is.
std::string_view refusal(const AttentionCall& call, std::initializer_list<const Value*> others,
                         const TileOptions& tiles);

// Products of queries and keys become scores; `mask`: the call's, as it lies over these.
Value* scaled_and_masked(Graph& graph, const AttentionCall& call, Value* products, Value* mask);

// A copy of values that tiles cannot read in vectors along their last dimension.
Value* with_dense_rows(Graph& graph, Value* value);

}  // namespace mlcc::graph
