// GraphBuilder: the graph IR's building functions as Python calls them.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <string>

#include "graph/graph.h"

namespace mlcc::python {

// A graph under construction. Values hold it, so that their handles never dangle.
struct GraphState {
  std::unique_ptr<graph::Graph> graph;  // null once it was compiled
};

// A value of a graph under construction, as Python holds it.
struct ValueHandle {
  std::shared_ptr<GraphState> state;
  graph::Value* value;
  graph::Value* get() const;  // Error if the graph was compiled already
};

class GraphBuilder {
 public:
  explicit GraphBuilder(const std::string& name);
  static GraphBuilder parse(const std::string& text);

  graph::Graph& graph() const;  // Error if it was compiled already
  std::unique_ptr<graph::Graph> take();
  ValueHandle handle(graph::Value* value) const { return {state_, value}; }
  graph::Value* value(const ValueHandle& handle) const;  // Error for a value of another graph

 private:
  explicit GraphBuilder(std::unique_ptr<graph::Graph> graph);
  std::shared_ptr<GraphState> state_;
};

// Adds GraphBuilder, Value and Argument to the module.
void bind_graph_builder(pybind11::module_& module);

}  // namespace mlcc::python
