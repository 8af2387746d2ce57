// Which rows are too long for a kernel to pass over them again, and which sums it then takes in the
// pass that it makes anyway (online.h).
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <vector>

#include "fusion/inlining.h"
#include "fusion/planning.h"
#include "graph/graph.h"
#include "types/symbolic.h"

namespace mlcc::fusion {

class LongRows {
 public:
  LongRows(const Planning& planning, const Inlining& inlining)
      : planning_(planning), inlining_(inlining) {}

  // Whether passes over a row of the group would better be kernels of their own. Bytes are those of
  // the types that are reduced.
  bool row_is_long(const Group& group, const std::vector<bool>& reduced) const;
  // Whether the sum `node` may be taken in the pass over long rows that finds the row values it
  // depends on, and what it adds up is computed again without much ado. `inlined`: see repair_of.
  bool joins_online(const graph::Node& node, const Group& group,
                    const graph::Node* inlined = nullptr) const;
  // How a reduction of the group, or one that is to be, is taken online; nothing where it is not.
  // `inlined`: a node that would be inlined too.
  std::optional<Repair> repair_of(const graph::Node& node, const Group& group,
                                  const Assumptions& assumptions,
                                  const graph::Node* inlined = nullptr) const;

 private:
  // About how many ops a kernel takes for an element that it does not read.
  int64_t ops_behind(const graph::Value& value, const Group& group, const graph::Node* inlined,
                     std::set<const graph::Node*>& seen) const;

  const Planning& planning_;
  const Inlining& inlining_;
};

}  // namespace mlcc::fusion
