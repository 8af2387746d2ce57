// Values that are the same in each round of a scan, computed in front of it.
//
//   %h, %ys = extern "scan"([%a], [%x], [%w]) regions {
//     graph @body(%h: f32[2, 4], %x: f32[2, 4], %w: f32[4, 4] static) {
//       %0: f32[4, 4] = permute %w {dims = [1, 0]}
//       %1: f32[4, 4] = copy %0
//       %2: .. = contract %h, %1 ..                  =>
//   %0: f32[4, 4] = permute %w {dims = [1, 0]}
//   %1: f32[4, 4] = copy %0
//   %h, %ys = extern "scan"([%a], [%x], [%w, %1]) regions {
//     graph @body(%h: f32[2, 4], %x: f32[2, 4], %w: f32[4, 4] static, %kept0: f32[4, 4]) {
//       %0: .. = contract %h, %kept0 ..
//
// Static inputs of a body are those that every round gets: the same facts decide what is cut as
// where a graph's values are kept across calls (graph/static_values.h), which those in front of the
// scan are if `%w` is static there too.
#pragma once

#include "graph/graph.h"

namespace mlcc::graph {

bool is_scan(const Node& node);  // over a region

// `scan` is replaced if there is anything to hoist; true then. Passes over the region must have
// run: what they lay out for the body's kernels is what is worth hoisting.
bool hoist_loop_invariants(Graph& graph, Node* scan);

}  // namespace mlcc::graph
