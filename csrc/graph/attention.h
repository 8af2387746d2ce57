// Attention: what fusion and lowering ask about `attend`, `logsumexp` and `attend_gradients`, whose
// scores are as a rule computed from a contraction of queries and keys.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "graph/index_map.h"

namespace mlcc::graph {

// Queries below which a copy of keys in panels takes longer than products along their width.
constexpr int64_t kFewQueries = 8;

bool is_attention(const Node& node);

// Numbers for each row of scores, which the kernel of an `attend` of these scores gives as well.
bool is_score_norm(const Node& node);

// Which axis of such a node does what. The last one of all is that of keys, which means reduce.
struct AttentionAxes {
  size_t rows;     // queries: of those that values do not know the last one that has a length
  size_t columns;  // of values, which lie side by side along it; of attend alone: else that of keys
  size_t keys;
  int64_t terms = 1;  // values of so many keys lie side by side for each column
};
// Nothing where values lie in another way.
std::optional<AttentionAxes> attention_axes(const Node& attention);

// How values lie: offset = key / terms * key_step + key % terms * term_step + column * terms + the
// rest, which is over the other axes.
struct ValuePlace {
  Value* base;
  SymExpr rest, key_step, term_step;
};
ValuePlace value_place(const Node& attend, const AttentionAxes& axes);

// A contraction that scores are computed from, element by element. The offsets of its operands'
// elements are over the axes of the node of attention, and those of depth.
struct ScoreProduct {
  Node* product;
  struct Operand {
    Value* base;
    SymExpr offset;
  };
  Operand queries, keys;
  struct Depth {
    std::string name;
    SymExpr extent;
  };
  std::vector<Depth> depth;
  // Keys lie in panels of so many: their offset is over kPanel and kLane instead of the axis of
  // keys. 0: they lie at equal distances.
  int64_t panel = 0;
  static constexpr const char* kPanel = "panel";
  static constexpr const char* kLane = "lane";
};

// Values over the axes of a node of attention, all of them computed from few contractions: scores
// of one; weights and gradients of scores of two.
struct ComputedScores {
  std::vector<ScoreProduct> products;
  std::vector<const Node*> path;  // these, and what lies between them and the values
};
// Nothing where there is no such contraction, or its operands lie such that no tile of scores is a
// product of rows of queries with keys.
std::optional<ComputedScores> computed_scores(const Node& attention, const AttentionAxes& axes,
                                              const Assumptions& assumptions);

// What weights are multiplied with once they are added up, which lies as scores do; may be null.
Value* factors_of(const Node& attend);

// The operands that are computed from products of queries and keys, and where they are read.
std::vector<Access> score_operands(const Node& attention);
bool is_score_operand(const Node& attention, const Value& value);

// The node of attention whose scores are computed from a contraction, null if there is none.
const Node* attention_of_scores(const Node& contraction);
inline bool makes_scores(const Node& contraction) {
  return attention_of_scores(contraction) != nullptr;
}

}  // namespace mlcc::graph
