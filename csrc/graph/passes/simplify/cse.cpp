#include "graph/passes/simplify/cse.h"

#include <unordered_map>

#include "graph/effects.h"
#include "graph/rewriter.h"
#include "graph/text.h"

namespace mlcc::graph {
namespace {

// Two nodes with one key compute the same: everything right of '=' with operands by their ids, and
// the result's type without its strides, which the rewriter looks after.
std::string key_of(const Node& node) {
  const std::string text = print(node);
  const TensorType& type = node.result()->type();
  return print(TensorType{type.dtype, type.shape, {}, type.device}) + text.substr(text.find(" = "));
}

}  // namespace

bool cse(Graph& graph, const CseOptions& options) {
  const Rewriter rewriter(graph, options);
  std::unordered_map<std::string, Value*> first_of;  // looked up only, never walked
  bool has_changed = false;
  for (Node* node : graph.nodes()) {
    if (writes_memory(*node)) first_of.clear();
    if (!is_pure(*node) || node->results().size() != 1) continue;
    if (node->result()->kind() != ValueKind::kTensor) continue;
    const auto [first, is_new] = first_of.try_emplace(key_of(*node), node->result());
    if (is_new) continue;
    has_changed |= rewriter.replace_by(node, first->second);
  }
  return has_changed;
}

}  // namespace mlcc::graph
