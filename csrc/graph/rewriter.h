// Replaces nodes by other values such that nobody outside the graph can tell.
//
// Strides and aliases are what can be told: graph outputs are handed out, extern calls see memory.
// Every pass that replaces values goes through here instead of deciding that anew.
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"
#include "graph/passes/options.h"

namespace mlcc::graph {

// Whether some extern call writes into the value's memory: into it, what it is a view of, or
// another view of that.
bool is_written(const Value& value);
// Whether an extern call or a caller of the graph sees how the value lies in memory, also by way of
// index maps.
bool is_layout_seen(const Graph& graph, const Value& value);

// Whether results may share memory with operands. flip, spread, extend, cat and pad write tensors
// of their own.
bool may_alias(const Node& node);
// Whether the caller gets the value's memory: as an output, or by way of views of it.
bool is_handed_out(const Graph& graph, const Value& value);

// Whether the caller gets the value as a view of memory that another output shows as well.
bool is_shared_view(const Graph& graph, const Value& value);

class Rewriter {
 public:
  Rewriter(Graph& graph, const PassOptions& options) : graph_(graph), options_(options) {}

  Graph& graph() const { return graph_; }
  bool no_match(const Node& node, std::string_view reason) const {
    return options_.no_match(node, reason);
  }
  bool may_rewrite() const { return options_.may_rewrite(); }

  // Lets all users of the node's result use `existing`, then erases the node. False, with nothing
  // changed, where the difference would be seen or no rewrite is left.
  bool replace_by(Node* node, Value* existing) const;
  // The same with a value that `make` builds in front of the node; it takes over the result's
  // strides and source. `make` must not return a value that was there before.
  bool replace_by_new(Node* node, const std::function<Value*()>& make) const;
  // The same of a node with several results: one value for each, null for those without uses.
  bool replace_all_by_new(Node* node, const std::function<std::vector<Value*>()>& make) const;

 private:
  Graph& graph_;
  const PassOptions& options_;
};

}  // namespace mlcc::graph
