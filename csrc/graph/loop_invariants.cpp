#include "graph/loop_invariants.h"

#include <optional>
#include <utility>
#include <vector>

#include "graph/control_flow.h"
#include "graph/static_values.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// For each input of the body the operand of the scan that it stands for in every round; null for
// sizes, what is carried and rows.
std::vector<Value*> operands_of_inputs(const Node& scan) {
  std::vector<Value*> operands;
  for (size_t list = 0; list < scan.extern_call().args.size(); ++list) {
    for (const Argument& argument : std::get<ArgList>(scan.extern_call().args[list].value)) {
      const auto* reference = std::get_if<ArgRef>(&argument.value);
      const bool is_fixed = list == 2 && reference != nullptr;
      operands.push_back(is_fixed ? scan.operand(static_cast<size_t>(reference->index)) : nullptr);
    }
  }
  return operands;
}

}  // namespace

bool is_scan(const Node& node) {
  return node.op() == Op::kExtern && !node.extern_call().regions.empty() &&
         parse_control_flow(node.extern_call().name) == ControlFlow::kScan;
}

bool hoist_loop_invariants(Graph& graph, Node* scan) {
  const std::vector<StaticCone> cones = cut_static_values(*scan->extern_call().regions[0]);
  if (cones.empty()) return false;
  const std::vector<Value*> outside = operands_of_inputs(*scan);
  ExternCall call = scan->extern_call();
  auto& others = std::get<ArgList>(call.args[2].value);
  std::vector<Value*> operands = scan->operands();
  graph.set_insertion_point(scan);
  for (const StaticCone& cone : cones) {
    std::vector<Value*> inputs;
    for (const size_t input : cone.inputs) {
      MLCC_CHECK(outside[input] != nullptr, "scan: input ", input, " is static but not fixed");
      inputs.push_back(outside[input]);
    }
    others.push_back(Argument{ArgRef{static_cast<int>(operands.size())}});
    operands.push_back(compute_cone(cone, graph, inputs));
  }
  std::vector<TensorType> types;
  for (const auto& result : scan->results()) types.push_back(result->type());
  const std::vector<Value*> results =
      graph.extern_call(std::move(call), std::move(operands), std::move(types));
  graph.set_insertion_point(nullptr);
  results[0]->producer()->set_source(scan->source());
  for (size_t i = 0; i < results.size(); ++i) graph.replace_all_uses(scan->result(i), results[i]);
  graph.erase(scan);
  return true;
}

}  // namespace mlcc::graph
