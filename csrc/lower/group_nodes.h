// What lowering asks about the nodes of a group: what they are computed from, in which pass over a
// row, and where they read and stand.
#pragma once

#include <map>
#include <set>
#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"

namespace mlcc::lower {

using fusion::is_reduction;

// What reductions, scans and updates of elements compute in: 16-bit floats in f32, where there are
// scalar ops; extremes stay exact.
DType carried_dtype(DType element);
DType carried_dtype(const graph::Node& reduction);

// The position along the dimension that an argmax or argmin reduces; 0 for other reductions.
SymExpr arg_dim_index(const graph::Node& node, const std::vector<SymExpr>& position);

class GroupNodes {
 public:
  GroupNodes(const fusion::FusionPlan& plan, const fusion::Group& group);

  // The pass over the row in which a node can be computed: what reads a reduction's result runs one
  // pass later.
  int level_of(const graph::Value* value) const;
  int last_level() const { return last_level_; }
  // The nodes of this group whose results `node` is computed from, through folded nodes.
  std::set<const graph::Value*> sources_of(const graph::Node& node) const;

  bool per_row(const graph::Node& node) const { return placement(node).per_row; }
  bool is_output(const graph::Value* value) const;
  const std::vector<SymExpr>& position(const graph::Node& node) const {
    return placement(node).position;
  }
  // Where a node's operands are read: its own position, with the reduced axes put back for a
  // reduction.
  std::vector<SymExpr> read_position(const graph::Node& node, const Assumptions& assumptions) const;
  std::vector<const graph::Node*> reductions() const;

 private:
  const fusion::Placement& placement(const graph::Node& node) const {
    return group_.placements.at(&node);
  }
  void collect_sources(const graph::Value* value, std::set<const graph::Value*>& sources) const;

  const fusion::FusionPlan& plan_;
  const fusion::Group& group_;
  std::map<const graph::Value*, int> levels_;
  int last_level_ = 0;
};

}  // namespace mlcc::lower
