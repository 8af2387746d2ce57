// What a fusion group computes, by the loop IR's interpreter and one kernel per node: the judge of
// the group's kernel while a program runs.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "driver/interpret.h"
#include "fusion/fusion.h"
#include "graph/graph.h"
#include "lower/lower.h"

namespace mlcc::driver {

// A graph, and how its nodes run one by one. Shared by the references of its groups.
struct NodeByNode {
  std::shared_ptr<const graph::Graph> graph;
  fusion::FusionPlan plan;
};
std::shared_ptr<const NodeByNode> run_node_by_node(std::shared_ptr<const graph::Graph> graph);

// What one evaluation gives.
struct ReferenceRun {
  std::optional<std::string> failed_check;  // "IndexError: ...", and no outputs then
  std::vector<HostTensor> outputs;          // as Reference::outputs()
};

class Reference {
 public:
  Reference(std::shared_ptr<const NodeByNode> nodes, const fusion::Group& group);

  // Values to be handed to run(), in order. Their memory is that of their strides.
  const std::vector<graph::Value*>& inputs() const { return inputs_; }
  const std::vector<graph::Value*>& outputs() const { return outputs_; }
  // Whose values run() wants, in order.
  const std::vector<std::string>& symbols() const { return symbols_; }
  // Terms that meet in one element of a result: the largest product of reduced extents. Those of
  // updates and scans count as reduced.
  int64_t num_terms(std::span<const int64_t> sizes) const;
  // Elements that a run goes over, of all nodes together.
  int64_t num_elements(std::span<const int64_t> sizes) const;
  // Whether a tensor without elements has strides by which its last one lies before its first one:
  // loop IR knows no such buffers, and the interpreter refuses them.
  bool has_negative_extent(std::span<const int64_t> sizes) const;
  std::string graph_text() const;
  // Whether a value that the kernel may keep wider is rounded to 16 bits.
  bool rounds_to_16_bits() const { return rounds_to_16_bits_; }
  // Whether floats that it computes are compared for equality, as gradients of extremes do: no
  // rounding of theirs may show what the kernel's own one gives.
  bool compares_computed() const { return compares_computed_; }

  // `rounding` 0 is the plain evaluation. Any other number is a seed: sums are then taken in
  // another order, every float that is not a whole number is off by one epsilon of its dtype, up or
  // down, in intermediate results, outputs, inputs that reductions read, and where an elementary
  // function gives it. How far such runs part from the plain one shows what rounding may do to each
  // element.
  ReferenceRun run(std::span<const HostTensor> inputs, std::span<const int64_t> sizes,
                   uint64_t rounding) const;

  std::vector<int64_t> evaluate(const std::vector<SymExpr>& all,
                                std::span<const int64_t> sizes) const;

 private:
  struct Step {
    const fusion::Group* group;
    bool accumulates;
    bool copies;  // no arithmetic
    std::unique_ptr<loop::Arena> arena;
    lower::LoweredKernel lowered;
  };
  class Run;

  void add_steps(const fusion::Group& group);
  void add_step(const fusion::Group& group);
  void find_symbols();
  int64_t evaluate(const SymExpr& expr, std::span<const int64_t> sizes) const;

  const std::shared_ptr<const NodeByNode> nodes_;
  std::vector<graph::Value*> inputs_, outputs_;
  std::vector<Step> steps_;  // in an order that computes what is read before
  std::vector<std::string> symbols_;
  bool rounds_to_16_bits_ = false;
  bool compares_computed_ = false;
};

}  // namespace mlcc::driver
