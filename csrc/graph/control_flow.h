// Control flow: extern calls whose op runs graphs ("regions") that hang on the node.
//
//   cond(pred, [operands])             regions: taken if pred holds, taken if not
//   while_loop([carried], [others])    regions: condition, body; inputs of both: carried, others
//   while_loop_stack([carried], [others])
//                                      the same; results are what was carried after each round,
//                                      stacked: as many rows as rounds, or one with the operands
//                                      where there was no round
//   scan([carried], [xs], [others])    region: body(carried, a row of each xs, others)
//                                        -> carried, a row of each result that is stacked
//   call([operands])                   region: body
//   save_rng([operands])               region: body -> the state of the generator before, results
//   with_rng([state, operands])        region: body(operands), drawing from that state
//
// An element of these lists is a reference or a size; a region has one input for each, which is a
// size input for a size. Results are tensors that share memory with nothing. The carried ones keep
// dtype, shape and strides from round to round. scan runs over dimension 0 of all xs, from front to
// back.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "graph/graph.h"

namespace mlcc::graph {

enum class ControlFlow : uint8_t {
  kCond,
  kWhileLoop,
  kWhileLoopStack,
  kScan,
  kCall,
  kSaveRng,
  kWithRng
};
std::optional<ControlFlow> parse_control_flow(std::string_view name);

// What does not fit about a call with regions: their number, their inputs and outputs against the
// operands and results of `node`. Nothing where all is well.
std::optional<std::string> control_flow_error(const Node& node);

// What a call of these graphs does beside computing.
ExternFacts facts_of_regions(const std::vector<std::shared_ptr<Graph>>& regions);

}  // namespace mlcc::graph
