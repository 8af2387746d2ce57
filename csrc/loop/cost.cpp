#include "loop/cost.h"

#include "loop/mutator.h"

namespace mlcc::loop {

int64_t ops_of(Expr e) {
  if (e->kind == ExprKind::kCast) return 1 + ops_of(as<Cast>(e)->value);
  const auto* apply = as<Apply>(e);
  if (apply == nullptr) return 0;
  int64_t total = scalar_op_class(apply->op) == OpClass::kFunction ? kFunctionOps : 1;
  for (const Expr arg : apply->args) total += ops_of(arg);
  return total;
}

int64_t ops_of(const Block& block) {
  int64_t total = 0;
  for_each_stmt(block, [&](Stmt stmt) {
    for (const Expr e : operands(stmt)) total += ops_of(e);
  });
  return total;
}

}  // namespace mlcc::loop
