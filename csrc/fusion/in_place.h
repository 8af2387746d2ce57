// Results that a kernel may write into the memory of the graph input which they replace.
//
// An input that a program changes in place reaches the graph as `aten.copy_(input, result)` behind
// everything else. Where nothing reads the input after the group that computes the result, the
// group can write there itself, and the call goes away. Whether its kernel reads each element of
// the input before it writes it shows in its loops only: lower::is_safe_in_place.
#pragma once

#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"

namespace mlcc::fusion {

// A call of aten.copy_ for two operands.
bool is_copy_into_first(const graph::Node& node);
// Whether a result of the group is copied over a value, where it might be written at once.
bool is_copied_over_a_value(const Group& group);

struct InPlaceWrite {
  const graph::Node* copy;  // the call
  int group;                // that computes the result
  graph::Value* result;
  graph::Value* input;
};

// At most one for each input and each result.
std::vector<InPlaceWrite> find_in_place_writes(const graph::Graph& graph, const FusionPlan& plan);

}  // namespace mlcc::fusion
