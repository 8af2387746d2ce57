#include "graph/static_values.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "graph/arguments.h"
#include "graph/effects.h"
#include "graph/rewriter.h"
#include "graph/strided_view.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// Beside index maps and constants.
constexpr std::array kCheapOps = std::to_array<Op>(
    {Op::kAdd,     Op::kSub,  Op::kRsub, Op::kMul,       Op::kNeg,       Op::kAbs,
     Op::kMaximum, Op::kAnd,  Op::kOr,   Op::kXor,       Op::kNot,       Op::kMinimum,
     Op::kEq,      Op::kNe,   Op::kLt,   Op::kLe,        Op::kGt,        Op::kGe,
     Op::kWhere,   Op::kRelu, Op::kCast, Op::kShiftLeft, Op::kShiftRight});

// On the CPU, of sizes that are known.
bool is_fixed(const Value& value) {
  return value.kind() == ValueKind::kTensor && value.type().device.kind == DeviceKind::kCpu &&
         are_constant(value.type().shape) && are_constant(value.type().strides);
}

// Depends on nothing but its operands, in a way that no call changes.
bool is_fixed(const Node& node) {
  for (const auto& result : node.results())
    if (!is_fixed(*result)) return false;
  for (const auto& [name, attr] : node.attrs()) {
    if (const auto* size = std::get_if<SymExpr>(&attr); size && !size->is_constant()) return false;
    const OpClass op_class = op_info(node.op()).op_class;
    const bool is_index = (op_class == OpClass::kContraction || op_class == OpClass::kAttention) &&
                          name != "reduced";  // over its axes
    if (const auto* sizes = std::get_if<std::vector<SymExpr>>(&attr);
        sizes && !is_index && !are_constant(*sizes))
      return false;
  }
  if (node.op() != Op::kExtern) return node.op() != Op::kSizeResult;
  const ExternCall& call = node.extern_call();
  return is_pure(node) && call.regions.empty() && !has_symbols(call);
}

// Written by an extern call, also by way of another one's result that may lie in the same memory.
bool is_changed(const Value& value) {
  if (is_written(value)) return true;
  return std::any_of(value.users().begin(), value.users().end(), [](const Node* user) {
    const bool may_alias = user->op() == Op::kExtern
                               ? user->extern_call().facts.aliases
                               : op_info(user->op()).op_class == OpClass::kIndexMap;
    return may_alias && std::any_of(user->results().begin(), user->results().end(),
                                    [](const auto& result) { return is_changed(*result); });
  });
}

// An input that is static, and stays so in this graph.
bool is_static_input(const Value& input) {
  return input.is_static() && is_fixed(input) && !is_changed(input);
}

bool is_static_value(const Value& value, std::unordered_set<const Value*>& seen) {
  if (!seen.insert(&value).second) return true;  // the first look at it decides
  const Node* node = value.producer();
  if (node == nullptr) return is_static_input(value);
  return is_fixed(*node) &&
         std::all_of(node->operands().begin(), node->operands().end(),
                     [&](const Value* operand) { return is_static_value(*operand, seen); });
}

// The node in another graph, whose values for its operands are known.
void copy(const Node& node, Graph& into, std::unordered_map<const Value*, Value*>& copies) {
  std::vector<Value*> operands;
  for (const Value* operand : node.operands()) operands.push_back(copies.at(operand));
  std::vector<Value*> results;
  if (node.op() == Op::kExtern) {
    std::vector<TensorType> types;
    for (const auto& result : node.results()) types.push_back(result->type());
    results = into.extern_call(node.extern_call(), std::move(operands), std::move(types));
  } else {
    results = {into.build(node.op(), std::move(operands), node.attrs(), node.result()->type())};
    into.set_strides(results[0], node.result()->type().strides);
  }
  results[0]->producer()->set_source(node.source());
  for (size_t i = 0; i < results.size(); ++i) copies[node.result(i)] = results[i];
}

class Cutter {
 public:
  explicit Cutter(Graph& graph) : graph_(graph) {}

  std::vector<StaticCone> cut() {
    find_origins();
    if (num_static_ == 0) return {};
    find_kept();
    std::vector<StaticCone> cones;
    for (const Value* value : kept_) cones.push_back(cone_of(*value));
    for (Value* value : kept_) graph_.replace_all_uses(value, add_input(*value));
    drop_unused();
    return cones;
  }

 private:
  // What a value is computed from: constants alone, static inputs and constants, or also what
  // changes from call to call.
  enum class Origin : uint8_t { kConstant, kStatic, kCall };

  Origin origin(const Value* value) const {
    const auto found = origins_.find(value);
    return found == origins_.end() ? Origin::kCall : found->second;
  }

  void find_origins() {
    for (const auto& input : graph_.inputs()) {
      if (!is_static_input(*input)) continue;
      origins_[input.get()] = Origin::kStatic;
      ++num_static_;
    }
    if (num_static_ == 0) return;
    for (const Node* node : graph_.nodes()) {
      if (!is_fixed(*node)) continue;
      Origin origin_of_node = Origin::kConstant;
      for (const Value* operand : node->operands())
        origin_of_node = std::max(origin_of_node, origin(operand));
      for (const auto& result : node->results()) origins_[result.get()] = origin_of_node;
    }
  }

  // Users before what they use, so that what is not kept makes its operands be looked at.
  void find_kept() {
    const std::vector<Node*> nodes = graph_.nodes();
    for (auto place = nodes.rbegin(); place != nodes.rend(); ++place) {
      const Node& node = **place;
      if (node.results().empty() || origin(node.result()) != Origin::kStatic) continue;
      std::vector<Value*> read;
      for (const auto& result : node.results())
        if (is_read(*result)) read.push_back(result.get());
      if (std::all_of(read.begin(), read.end(), [&](Value* value) { return may_keep(value); }))
        kept_.insert(kept_.end(), read.begin(), read.end());
      else
        for (const auto& result : node.results()) origins_[result.get()] = Origin::kCall;
    }
    std::reverse(kept_.begin(), kept_.end());
  }

  // By what is computed in each call.
  bool is_read(const Value& value) const {
    return graph_.is_output(&value) ||
           std::any_of(value.users().begin(), value.users().end(), [&](const Node* user) {
             return user->results().empty() || origin(user->result()) == Origin::kCall;
           });
  }

  bool may_keep(Value* value) const {
    if (is_handed_out(graph_, *value) || is_changed(*value)) return false;
    if (strided_view(value)->base != value) return false;
    return !is_cheap(value->producer()->op()) ||
           *bytes_of(*value) <= *bytes_behind_cheap_ops(*value);
  }

  // Nodes behind what they read, operands from left to right: an order that the graph around has no
  // part in.
  static std::vector<const Node*> nodes_of_cone(const Value& value) {
    std::vector<const Node*> order;
    std::unordered_set<const Node*> done;
    std::vector<std::pair<const Node*, size_t>> open = {{value.producer(), 0}};
    while (!open.empty()) {
      auto& [node, next] = open.back();
      if (done.contains(node)) {
        open.pop_back();
      } else if (next < node->operands().size()) {
        const Node* producer = node->operand(next++)->producer();
        if (producer != nullptr) open.emplace_back(producer, 0);
      } else {
        done.insert(node);
        order.push_back(node);
        open.pop_back();
      }
    }
    return order;
  }

  StaticCone cone_of(const Value& value) const {
    StaticCone cone{std::make_unique<Graph>("kept"), {}};
    std::unordered_map<const Value*, Value*> copies;
    const std::vector<const Node*> nodes = nodes_of_cone(value);
    for (const Node* node : nodes)
      for (const Value* operand : node->operands()) {
        if (operand->producer() != nullptr || copies.contains(operand)) continue;
        copies[operand] =
            cone.graph->add_input("w" + std::to_string(cone.inputs.size()), operand->type());
        cone.inputs.push_back(number_of(operand));
      }
    for (const Node* node : nodes) copy(*node, *cone.graph, copies);
    cone.graph->set_outputs({copies.at(&value)});
    return cone;
  }

  size_t number_of(const Value* input) const {
    const auto& inputs = graph_.inputs();
    const auto found = std::find_if(inputs.begin(), inputs.end(),
                                    [&](const auto& one) { return one.get() == input; });
    MLCC_CHECK(found != inputs.end(), "input %", input->name(), " is none of the graph's");
    return static_cast<size_t>(found - inputs.begin());
  }

  Value* add_input(const Value& value) {
    const auto is_taken = [&](const std::string& name) {
      return std::any_of(graph_.inputs().begin(), graph_.inputs().end(),
                         [&](const auto& input) { return input->name() == name; });
    };
    std::string name;
    do name = "kept" + std::to_string(next_name_++);
    while (is_taken(name));
    return graph_.add_input(name, value.type());
  }

  // What computed the kept values, as far as nothing else reads it.
  void drop_unused() {
    const std::vector<Node*> nodes = graph_.nodes();
    for (auto place = nodes.rbegin(); place != nodes.rend(); ++place) {
      const auto& results = (*place)->results();
      if (results.empty() || origin(results[0].get()) == Origin::kCall) continue;
      if (std::all_of(results.begin(), results.end(), [&](const auto& result) {
            return result->users().empty() && !graph_.is_output(result.get());
          }))
        graph_.erase(*place);
    }
  }

  Graph& graph_;
  std::unordered_map<const Value*, Origin> origins_;  // looked up only; kCall where not found
  size_t num_static_ = 0;
  std::vector<Value*> kept_;
  int next_name_ = 0;
};

}  // namespace

bool is_cheap(Op op) {
  const OpClass op_class = op_info(op).op_class;
  return op_class == OpClass::kIndexMap || op_class == OpClass::kCreation ||
         std::find(kCheapOps.begin(), kCheapOps.end(), op) != kCheapOps.end();
}

std::optional<int64_t> bytes_of(const Value& value) {
  const auto elements = product(value.type().shape).as_constant();
  if (!elements) return std::nullopt;
  return *elements * dtype_size(value.type().dtype);
}

std::optional<int64_t> bytes_behind_cheap_ops(const Value& value) {
  int64_t bytes = 0;
  std::unordered_set<const Value*> seen;  // membership only
  std::vector<const Value*> open = {&value};
  while (!open.empty()) {
    const Value* next = open.back();
    open.pop_back();
    if (!seen.insert(next).second) continue;
    const Node* producer = next->producer();
    if (producer != nullptr && is_cheap(producer->op())) {
      open.insert(open.end(), producer->operands().begin(), producer->operands().end());
      continue;
    }
    const auto own = bytes_of(*next);
    if (!own) return std::nullopt;
    bytes += *own;
  }
  return bytes;
}

bool is_static_value(const Value& value) {
  std::unordered_set<const Value*> seen;  // membership only
  return is_static_value(value, seen);
}

std::vector<StaticCone> cut_static_values(Graph& graph) { return Cutter(graph).cut(); }

Value* compute_cone(const StaticCone& cone, Graph& into, const std::vector<Value*>& inputs) {
  std::unordered_map<const Value*, Value*> copies;
  for (size_t i = 0; i < inputs.size(); ++i) copies[cone.graph->inputs()[i].get()] = inputs[i];
  for (const Node* node : cone.graph->nodes()) copy(*node, into, copies);
  return copies.at(cone.graph->outputs()[0]);
}

}  // namespace mlcc::graph
