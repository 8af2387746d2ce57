// A call of a graph as a graph of its own, to see how long it takes.
//
//   graph @net(%x: f32[s3, 64], %w: f32[100, 64] static, ..)
//     ..
//     %5: f32[64, 100] = permute %w {dims = [1, 0]}
//     %6: f32[s3, 100] = extern "aten.mm.default"(%4, %5)
//   =>
//   graph @alone(%x0: f32[n0, 64], %x1: f32[100, 64] static)
//     %0: f32[64, 100] = permute %x1 {dims = [1, 0]}
//     %1: f32[n0, 100] = extern "aten.mm.default"(%x0, %0)
//     return %1
#pragma once

#include <memory>

#include "graph/graph.h"

namespace mlcc::graph {

// Its inputs are the call's operands, static where these are, laid out as far as the order of their
// strides tells; its symbols are named in the order in which they appear, with the graph's hints.
// So calls that differ in nothing but their place print the same text. Null where it is no pure
// call of tensors of the CPU with one result, or an operand has elements apart.
std::unique_ptr<Graph> call_alone(const Graph& graph, const Node& call);

}  // namespace mlcc::graph
