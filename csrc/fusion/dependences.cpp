#include "fusion/dependences.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <variant>

#include "fusion/node_kinds.h"
#include "graph/strided_view.h"
#include "types/argument.h"

namespace mlcc::fusion {

using graph::Access;
using graph::Node;
using graph::Op;
using graph::Value;

int Dependences::unit_of(const Value* value) const {
  if (value->producer() == nullptr) return -1;
  const auto found = unit_of_node_.find(value->producer());
  return found == unit_of_node_.end() ? -1 : found->second;
}

int Dependences::last_writer_of(const Value* value) const {
  const auto found = last_writer_.find(value);
  return found == last_writer_.end() ? -1 : found->second;
}

std::set<int> Dependences::definers_of(const Node& node) const {
  std::set<int> units;
  std::set<const Node*> seen;  // membership only
  if (!definers_.empty()) collect_definers(node, seen, units);
  return units;
}

void Dependences::add_kernel(const Node& first) {
  group_units_.push_back(new_unit(&first, static_cast<int>(group_units_.size())));
}

void Dependences::add_node(int unit, const Node& node, const std::vector<Access>& leaves,
                           int64_t ops) {
  for (const Access& leaf : leaves) add_read(unit, leaf.value);
  for (const int definer : definers_of(node)) units_[unit].reads.insert(definer);
  units_[unit].ops += ops;
  units_[unit].last = planning_.order.at(&node);
  unit_of_node_[&node] = unit;
}

void Dependences::add_call(const Node& node) {
  const int unit = new_unit(&node, -1);
  unit_of_node_[&node] = unit;
  for (Value* operand : node.operands())
    if (operand->kind() == graph::ValueKind::kTensor)
      add_read(unit, graph::strided_view(operand)->base);
  for (const int definer : definers_of(node)) units_[unit].reads.insert(definer);
  add_definitions(unit, node);
  const graph::ExternFacts& facts = node.extern_call().facts;
  units_[unit].reads.merge(call_order_.add(unit, facts));
  if (turn_of(facts) == Turn::kLate) units_[unit].waits_for = planning_.order.at(&node);
  for (const int i : facts.mutates) {
    const Value* base = graph::strided_view(node.operand(i))->base;
    for (const int reader : readers_since_write_[base])
      if (reader != unit) units_[unit].reads.insert(reader);
    readers_since_write_[base].clear();
    last_writer_[base] = unit;
  }
}

int Dependences::new_unit(const Node* node, int group) {
  UnitState unit;
  unit.group = group;
  unit.node = group < 0 ? node : nullptr;
  unit.first = unit.last = planning_.order.at(node);
  units_.push_back(std::move(unit));
  return static_cast<int>(units_.size()) - 1;
}

void Dependences::add_read(int unit, const Value* value) {
  const int source = unit_of(value);
  if (source >= 0 && source != unit) {
    units_[unit].reads.insert(source);
    units_[unit].waits_for = std::max(units_[unit].waits_for, units_[source].waits_for);
  }
  const auto writer = last_writer_.find(value);
  if (writer != last_writer_.end() && writer->second != unit)
    units_[unit].reads.insert(writer->second);
  readers_since_write_[value].insert(unit);
}

void Dependences::add_definitions(int unit, const Node& node) {
  for (const auto& result : node.results()) {
    std::vector<SymExpr> sizes = {result->kind() == graph::ValueKind::kSize ? result->size() : 0};
    if (result->kind() == graph::ValueKind::kTensor) sizes = result->type().shape;
    for (const SymExpr& size : sizes)
      if (const auto name = size.as_symbol(); name && !input_symbols_.contains(*name))
        definers_.emplace(*name, unit);
  }
}

void Dependences::find_input_symbols() {
  const auto add = [this](const SymExpr& size) {
    for (std::string& name : size.symbols()) input_symbols_.insert(std::move(name));
  };
  for (const auto& input : planning_.graph.inputs()) {
    if (input->kind() == graph::ValueKind::kSize)
      add(input->size());
    else
      for (const SymExpr& size : input->type().shape) add(size);
  }
}

void Dependences::collect_definers(const Node& node, std::set<const Node*>& seen,
                                   std::set<int>& units) const {
  if (!seen.insert(&node).second) return;
  const auto add = [&](const SymExpr& size) {
    for (const std::string& name : size.symbols())
      if (const auto found = definers_.find(name); found != definers_.end())
        units.insert(found->second);
  };
  for (const auto& result : node.results())
    if (result->kind() == graph::ValueKind::kTensor)
      for (const SymExpr& size : result->type().shape) add(size);
  for (const auto& [name, value] : node.attrs())
    if (const auto* size = std::get_if<SymExpr>(&value)) add(*size);
  if (node.op() == Op::kExtern) {
    for (const Argument& argument : node.extern_call().args) for_each_size(argument, add);
    for (const auto& [name, argument] : node.extern_call().kwargs) for_each_size(argument, add);
  }
  for (const Value* operand : node.operands())
    if (operand->producer() != nullptr && planning_.folds(*operand->producer()))
      collect_definers(*operand->producer(), seen, units);
}

}  // namespace mlcc::fusion
