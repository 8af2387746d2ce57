#include "fusion/in_place.h"

#include <algorithm>
#include <optional>
#include <unordered_map>
#include <unordered_set>

#include "graph/effects.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"

namespace mlcc::fusion {

using graph::Node;
using graph::Value;
using graph::ValueKind;

bool is_copy_into_first(const Node& node) {
  return node.op() == graph::Op::kExtern && node.extern_call().name == "aten.copy_.default" &&
         node.operands().size() == 2;
}

bool is_copied_over_a_value(const Group& group) {
  return std::any_of(group.outputs.begin(), group.outputs.end(), [](const Value* output) {
    return std::any_of(output->users().begin(), output->users().end(),
                       [](const Node* user) { return is_copy_into_first(*user); });
  });
}

namespace {

bool lie_alike(const graph::TensorType& a, const graph::TensorType& b) {
  return a.dtype == b.dtype && a.device == b.device && a.shape == b.shape &&
         a.dense_or_strides() == b.dense_or_strides();
}

class Finder {
 public:
  Finder(const graph::Graph& graph, const FusionPlan& plan) : graph_(graph), plan_(plan) {
    size_t place = 0;
    for (const Unit& unit : plan.order) {
      if (!unit.beside) ++place;
      if (unit.group >= 0)
        place_of_group_[unit.group] = place;
      else
        place_of_node_[unit.node] = place;
    }
    const std::vector<Node*> nodes = graph.nodes();
    for (size_t i = 0; i < nodes.size(); ++i) order_[nodes[i]] = i;
  }

  std::vector<InPlaceWrite> find() const {
    std::vector<InPlaceWrite> writes;
    std::unordered_set<const Value*> taken;
    for (const Unit& unit : plan_.order) {
      if (unit.group >= 0 || !is_copy_into_first(*unit.node)) continue;
      const std::optional<InPlaceWrite> write = write_of(*unit.node);
      if (write && taken.insert(write->result).second && taken.insert(write->input).second)
        writes.push_back(*write);
    }
    return writes;
  }

 private:
  std::optional<InPlaceWrite> write_of(const Node& copy) const {
    Value* input = copy.operand(0);
    Value* result = copy.operand(1);
    const auto group = plan_.group_of.find(result->producer());
    if (input->producer() != nullptr || group == plan_.group_of.end()) return std::nullopt;
    const std::vector<Value*>& outputs = plan_.groups[group->second].outputs;
    if (std::find(outputs.begin(), outputs.end(), result) == outputs.end()) return std::nullopt;
    if (!lie_alike(input->type(), result->type())) return std::nullopt;
    // The caller keeps what the program returns, and may write to it: it is no view of the input.
    if (is_returned(*result)) return std::nullopt;
    if (!is_stored_once(plan_.groups[group->second], *result)) return std::nullopt;
    if (is_read_after(*input, copy, group->second) || overtakes_failure(*result, group->second))
      return std::nullopt;
    return InPlaceWrite{&copy, group->second, result, input};
  }

  // The value, or a view of it. The copy is a view of the input, and not of what it copies.
  bool is_returned(const Value& value) const {
    if (graph_.is_output(&value)) return true;
    return std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
      const auto& results = user->results();
      return graph::may_alias(*user) &&
             !(is_copy_into_first(*user) && user->operand(1) == &value) &&
             std::any_of(results.begin(), results.end(),
                         [&](const auto& result) { return is_returned(*result); });
    });
  }

  // One iteration for each element; updates see to theirs themselves.
  static bool is_stored_once(const Group& group, const Value& result) {
    if (graph::op_info(result.producer()->op()).op_class == graph::OpClass::kUpdate) return true;
    const bool per_row = group.placements.at(result.producer()).per_row;
    SymExpr iterations = 1;
    for (size_t d = 0; d < group.domain.size(); ++d)
      if (!per_row || !group.reduced[d]) iterations = iterations * group.domain[d];
    return iterations == product(result.type().shape);
  }

  // By a kernel or a call that does not come before `group`, or at any time through memory that a
  // call returned. What only reads, and stands behind the copy in the program, is to see new
  // values.
  bool is_read_after(const Value& input, const Node& copy, int group) const {
    const size_t place = place_of_group_.at(group);
    const auto sees_copy = [&](const Node* node) { return order_.at(node) > order_.at(&copy); };
    for (int i = 0; i < static_cast<int>(plan_.groups.size()); ++i) {
      const Group& reader = plan_.groups[static_cast<size_t>(i)];
      const size_t at = place_of_group_.at(i);
      if (i == group || at < place ||
          std::find(reader.inputs.begin(), reader.inputs.end(), &input) == reader.inputs.end())
        continue;
      if (at == place || !std::all_of(reader.nodes.begin(), reader.nodes.end(), sees_copy))
        return true;
    }
    for (const auto& [node, at] : place_of_node_) {
      if (node == &copy || !uses(*node, input)) continue;
      const bool writes = graph::writes_memory(*node);
      if (at > place && sees_copy(node) && !writes) continue;
      if (at > place || node->extern_call().facts.aliases || writes) return true;
    }
    return false;
  }

  // Whether something may raise an error before which eager would have written nothing: what comes
  // before `result` in the program, but not before the kernel of its group.
  bool overtakes_failure(const Value& result, int group) const {
    const size_t place = place_of_group_.at(group);
    const auto comes_earlier = [&](const Node* node) {
      return order_.at(node) < order_.at(result.producer());
    };
    for (const auto& [other, at] : place_of_group_)
      if (other != group && at >= place) {
        const std::vector<Node*>& nodes = plan_.groups[static_cast<size_t>(other)].nodes;
        if (std::any_of(nodes.begin(), nodes.end(),
                        [&](const Node* node) { return may_fail(*node) && comes_earlier(node); }))
          return true;
      }
    return std::any_of(place_of_node_.begin(), place_of_node_.end(), [&](const auto& call) {
      return call.second >= place && comes_earlier(call.first);
    });
  }

  static bool uses(const Node& node, const Value& input) {
    return std::any_of(node.operands().begin(), node.operands().end(), [&](Value* operand) {
      return operand->kind() == ValueKind::kTensor && graph::strided_view(operand)->base == &input;
    });
  }

  const graph::Graph& graph_;
  const FusionPlan& plan_;
  // In the program.
  std::unordered_map<const Node*, size_t> order_;
  // The same for what runs at the same time.
  std::unordered_map<int, size_t> place_of_group_;
  std::unordered_map<const Node*, size_t> place_of_node_;
};

}  // namespace

std::vector<InPlaceWrite> find_in_place_writes(const graph::Graph& graph, const FusionPlan& plan) {
  return Finder(graph, plan).find();
}

}  // namespace mlcc::fusion
