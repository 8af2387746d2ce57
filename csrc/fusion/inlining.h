// What is inlined: which nodes their readers compute for themselves, and what that costs a kernel.
#pragma once

#include <cstdint>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "fusion/memory.h"
#include "fusion/planning.h"
#include "graph/graph.h"

namespace mlcc::fusion {

class Inlining {
 public:
  // `recomputed`: nodes that all readers are to compute, see recompute.h.
  Inlining(Planning& planning, const Writes& writes,
           const std::unordered_set<const graph::Node*>& recomputed)
      : planning_(planning), plan_(planning.plan), writes_(writes), recomputed_(recomputed) {}

  // For all nodes of the graph. Without fusion none is inlined.
  void decide();
  // One more, while groups grow: its readers are to compute it after all.
  void inline_node(const graph::Node& node) { mark_inlined(node, inlined_nodes(node)); }

  // The nodes that a reader of this one would evaluate.
  int64_t inlined_nodes(const graph::Node& node) const;
  // About how many simple ops a node takes for an element.
  int64_t ops_of(const graph::Node& node) const;
  // The same with what is inlined into it: what its reader, or itself, makes its kernel compute.
  int64_t ops_with_inlined(const graph::Node& node) const;

 private:
  void find_scores();
  bool is_term_of_scores(const graph::Node& node, const graph::Node& reader) const;
  bool makes_scores(const graph::Node& node) const;
  void limit_reshapes(const graph::Node& node);
  void decide(const graph::Node& node);
  void mark_inlined(const graph::Node& node, int64_t nodes);
  bool serves_one_attention(const graph::Node& node) const;
  bool repeats_work(const graph::Node& node, const graph::Node& reader) const;
  bool reads_inlined(const graph::Value& value) const;
  bool is_widening_cast(const graph::Node& node) const;
  int64_t inline_cost(const graph::Value* value) const;

  Planning& planning_;
  FusionPlan& plan_;
  const Writes& writes_;
  const std::unordered_set<const graph::Node*>& recomputed_;
  std::unordered_map<const graph::Value*, int64_t> inline_cost_, inline_ops_;
  std::unordered_set<const graph::Node*> scores_;          // and what they are computed from
  std::unordered_map<const graph::Value*, int> reshapes_;  // levels of them down to memory
};

}  // namespace mlcc::fusion
