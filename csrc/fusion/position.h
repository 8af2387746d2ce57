// Where a node would stand in a group, by shapes alone.
#pragma once

#include <optional>
#include <vector>

#include "fusion/planning.h"
#include "graph/graph.h"
#include "types/symbolic.h"

namespace mlcc::fusion {

struct Join {
  Placement placement;                 // of the result
  std::vector<SymExpr> read_position;  // where operands are read
  std::vector<bool> reduced;           // the group's axes, afterwards
};

bool has_any(const std::vector<bool>& axes);

// Nothing where the node runs over another shape. `assumptions`: the axes of the group are in
// bounds.
std::optional<Join> position_in(const Planning& planning, const graph::Node& node,
                                const Group& group, const Assumptions& assumptions);

}  // namespace mlcc::fusion
