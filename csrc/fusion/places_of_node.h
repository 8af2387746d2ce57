// Where in memory a node of a group reads and writes, as the group's axes move: whether it goes
// there in the order in which a kernel goes over the group.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "graph/graph.h"
#include "graph/index_map.h"
#include "types/symbolic.h"

namespace mlcc::fusion {

struct Group;

class PlacesOfNode {
 public:
  // `domain`: extents of the group's axes; `own`: what the node writes, over these axes, as are the
  // indices of what it reads.
  PlacesOfNode(std::vector<SymExpr> domain, Assumptions assumptions, graph::Access own,
               std::vector<graph::Access> read)
      : domain_(std::move(domain)), assumptions_(std::move(assumptions)), own_(std::move(own)),
        read_(std::move(read)) {}

  // Whether elements that stand side by side in a row of the group are read or written apart.
  bool go_across() const;
  // Whether places do not move in equal steps along a row.
  bool jump_in_a_row() const;
  // Of a node that follows a contraction whose result has so many dimensions: whether its places do
  // not move in equal steps along one of the last two of them, or lie apart along the columns of a
  // convolution's tiles; or whether its shape takes the columns apart, across which tiles lie.
  bool jump_along_tiles(size_t rank) const;
  // Whether what is written lies side by side along another axis than one of as many elements that
  // is read.
  bool are_transposed() const;

 private:
  using Linear = std::optional<SymExpr::Linear>;

  SymExpr place(const graph::Access& access) const;
  std::optional<size_t> dense_axis(const graph::Access& access) const;
  // Whether `test` holds of a place along an axis of the group.
  bool any(size_t axis, const std::function<bool(const Linear&)>& test) const;

  const std::vector<SymExpr> domain_;
  const Assumptions assumptions_;
  const graph::Access own_;
  const std::vector<graph::Access> read_;
};

// Whether a kernel of the CPU reads a value as it lies in memory, from one end to the other, and
// may run beside others: one that may fail may not, nor one that might write over an input.
bool walks_over(const Group& group, const graph::Value& value);

}  // namespace mlcc::fusion
