#include "codegen/cpu/index_lets.h"

#include "loop/mutator.h"

namespace mlcc::codegen::cpu {

void IndexLets::add(const loop::Let& let) {
  const std::optional<SymExpr> index = index_of(let.value);
  definitions_.emplace(let.variable->name, index);
  if (index) lets_.push_back(&let);
}

std::optional<SymExpr> IndexLets::index_of(loop::Expr e) const {
  const std::optional<SymExpr> index = loop::to_symbolic(e);
  if (!index) return std::nullopt;
  bool reads_others = false;
  loop::for_each_expr({e}, [&](loop::Expr part) {
    const auto* variable = loop::as<loop::Variable>(part);
    if (variable == nullptr) return;
    const auto found = definitions_.find(variable->name);
    reads_others |= found != definitions_.end() && !found->second;
  });
  if (reads_others) return std::nullopt;
  return index->substitute([&](std::string_view name) {
    const auto found = definitions_.find(name);
    return found == definitions_.end() ? std::nullopt : found->second;
  });
}

}  // namespace mlcc::codegen::cpu
