// Whether a node joins a group, else why it did not, for the log: what is not possible, and what
// had better be kernels of their own.
#pragma once

#include <vector>

#include "fusion/dependences.h"
#include "fusion/inlining.h"
#include "fusion/long_rows.h"
#include "fusion/places_of_node.h"
#include "fusion/planning.h"
#include "fusion/position.h"
#include "graph/graph.h"
#include "support/result.h"

namespace mlcc::fusion {

class JoinRules {
 public:
  JoinRules(const Planning& planning, const Inlining& inlining, const Dependences& dependences,
            const LongRows& long_rows)
      : planning_(planning), plan_(planning.plan), inlining_(inlining), dependences_(dependences),
        long_rows_(long_rows) {}

  Result<Join> try_join(const graph::Node& node, int group_index) const;

 private:
  bool is_better_apart(const graph::Node& node, const Group& group, const Join& join) const;
  PlacesOfNode places_of(const graph::Node& node, const std::vector<SymExpr>& position,
                         const Group& group) const;
  bool is_out_of_order(const graph::Node& node, const std::vector<SymExpr>& position,
                       const Group& group) const;
  bool is_transposed(const graph::Node& node, const Join& join, const Group& group) const;

  const Planning& planning_;
  const FusionPlan& plan_;
  const Inlining& inlining_;
  const Dependences& dependences_;
  const LongRows& long_rows_;
};

}  // namespace mlcc::fusion
