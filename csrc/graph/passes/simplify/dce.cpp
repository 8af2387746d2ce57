#include "graph/passes/simplify/dce.h"

#include <algorithm>
#include <set>
#include <string>

#include "graph/effects.h"

namespace mlcc::graph {
namespace {

// Calls `visit` on every symbol in the value's type.
template <typename Visit>
void for_each_symbol(const Value& value, const Visit& visit) {
  for (const std::string& symbol : value.size().symbols()) visit(symbol);
  for (const SymExpr& size : value.type().shape)
    for (const std::string& symbol : size.symbols()) visit(symbol);
}

// The extern calls in whose results a symbol appears first: later nodes know it from there.
std::set<const Node*> symbol_definitions(const Graph& graph) {
  std::set<std::string> known;
  std::set<const Node*> definitions;
  for (const auto& input : graph.inputs())
    for_each_symbol(*input, [&](const std::string& symbol) { known.insert(symbol); });
  for (const Node* node : graph.nodes()) {
    if (node->op() != Op::kExtern) continue;
    for (const auto& result : node->results())
      for_each_symbol(*result, [&](const std::string& symbol) {
        if (known.insert(symbol).second) definitions.insert(node);
      });
  }
  return definitions;
}

bool is_used(const Graph& graph, const Node& node) {
  return std::any_of(node.results().begin(), node.results().end(), [&](const auto& result) {
    return !result->users().empty() || graph.is_output(result.get());
  });
}

}  // namespace

bool dce(Graph& graph, const DceOptions& options) {
  const std::set<const Node*> definitions = symbol_definitions(graph);
  const std::vector<Node*> nodes = graph.nodes();
  bool has_changed = false;
  for (auto place = nodes.rbegin(); place != nodes.rend(); ++place) {
    Node* node = *place;
    if (is_used(graph, *node) || has_effects(*node)) continue;
    if (definitions.contains(node)) {
      options.no_match(*node, "it defines a size symbol");
      continue;
    }
    if (!options.may_rewrite()) return has_changed;
    graph.erase(node);
    has_changed = true;
  }
  return has_changed;
}

}  // namespace mlcc::graph
