#include "graph/arguments.h"

#include <variant>

namespace mlcc::graph {

Value* operand_of(const Node& node, const Argument& argument) {
  const auto* reference = std::get_if<ArgRef>(&argument.value);
  return reference == nullptr ? nullptr : node.operand(static_cast<size_t>(reference->index));
}

std::optional<double> number_of(const Argument& argument) {
  if (const auto* number = std::get_if<double>(&argument.value)) return *number;
  const auto* size = std::get_if<SymExpr>(&argument.value);
  const auto constant = size == nullptr ? std::nullopt : size->as_constant();
  return constant ? std::optional(static_cast<double>(*constant)) : std::nullopt;
}

bool has_symbols(const ExternCall& call) {
  bool found = false;
  const auto visit = [&](const SymExpr& size) { found |= !size.is_constant(); };
  for (const Argument& argument : call.args) for_each_size(argument, visit);
  for (const auto& [name, argument] : call.kwargs) for_each_size(argument, visit);
  return found;
}

}  // namespace mlcc::graph
