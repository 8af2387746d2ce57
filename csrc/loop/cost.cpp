#include "loop/cost.h"

#include <unordered_set>

#include "loop/mutator.h"

namespace mlcc::loop {
namespace {

// Indices of loads are not part of what is computed.
int64_t ops_of(Expr e, std::unordered_set<Expr>& seen) {
  if (!seen.insert(e).second) return 0;
  if (e->kind == ExprKind::kCast) return 1 + ops_of(as<Cast>(e)->value, seen);
  const auto* apply = as<Apply>(e);
  if (apply == nullptr) return 0;
  int64_t total = scalar_op_class(apply->op) == OpClass::kFunction ? kFunctionOps : 1;
  for (const Expr arg : apply->args) total += ops_of(arg, seen);
  return total;
}

}  // namespace

int64_t ops_of(Expr e) {
  std::unordered_set<Expr> seen;
  return ops_of(e, seen);
}

int64_t ops_of(const Block& block) {
  int64_t total = 0;
  std::unordered_set<Expr> seen;
  for_each_stmt(block, [&](Stmt stmt) {
    for (const Expr e : operands(stmt)) total += ops_of(e, seen);
  });
  return total;
}

}  // namespace mlcc::loop
