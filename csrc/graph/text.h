// The textual form of the graph IR. parse(print(g)) prints the same; the text shows all state but
// sources.
//
//   graph @bias_relu(%x: f32[s0, 512], %b: f32[512]) symbols(s0 in 2..65536 hint 128) {
//     %0: f32[s0, 512] = add %x, %b
//     %1: f32[s0, 512] = relu %0
//     %2: f32[512, s0] strides(1, 512) = permute %1 {dims = [1, 0]}
//     %3: f32[512, 8] = extern "aten.mm.default"(%2, %w)
//     return %3, %1
//   }
//
// A type ends with the device where that is not the CPU: `f32[4, 8] strides(1, 4) @cuda:0`.
// An input that is static says so: `%w: f32[512] static`. A size input is `%n: size(s0)`. A range
// of a symbol is closed; `0..` has no upper end, no range at all means any value. Attributes stand
// in braces, sorted by name. Extern facts follow the call: `extern "aten.copy_.default"(%x, %1,
// false) mutates(0)`, `random`, `effects`, `aliases`, `begins`, `waits`. Keyword arguments: `name =
// value`.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "graph/graph.h"

namespace mlcc::graph {

// Values are numbered in order; two prints of equal graphs are equal bytes.
std::string print(const Graph& graph);
std::string print(const Node& node);        // one line with the values' ids, for logs and messages
std::string print(const TensorType& type);  // "f32[s0, 512] strides(1, s0) @cuda:0"
// Error "line:col: ..." on malformed text, and where a node breaks a rule. Each node's source
// becomes its "line:col".
std::unique_ptr<Graph> parse_graph(std::string_view text);
// Throws InternalError naming node and rule: dominance, use lists, types against inference, symbols
// declared and known where they are used (a symbol is known from the inputs' types, and after the
// extern call in whose results it first appears). The message begins with the node's source where
// it has one.
void verify(const Graph& graph);

}  // namespace mlcc::graph
