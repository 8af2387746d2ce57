// Which nodes read a value, and what a node reads from memory: both seen through the nodes that are
// folded into their readers.
#pragma once

#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"
#include "graph/index_map.h"
#include "types/symbolic.h"

namespace mlcc::fusion {

// The nodes that really read `value`: readers of free nodes on the way count instead of these.
std::vector<const graph::Node*> readers_of(const FusionPlan& plan, const graph::Value* value);
// As readers_of; readers of inlined nodes count instead of these too.
std::vector<const graph::Node*> readers_behind_inlined(const FusionPlan& plan,
                                                       const graph::Value* value);

// Everything `node` reads from memory when it stands at `position` (of its operand, for a
// reduction): values and their indices. No index: all of the value, each element many times.
std::vector<graph::Access> leaves_of(const FusionPlan& plan, const graph::Node& node,
                                     const std::vector<SymExpr>& position,
                                     const Assumptions& assumptions);

}  // namespace mlcc::fusion
