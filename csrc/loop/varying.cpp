#include "loop/varying.h"

#include <algorithm>

#include "support/error.h"

namespace mlcc::loop {
namespace {

class Analysis {
 public:
  explicit Analysis(VariableSet seeds) : varying_(std::move(seeds)) {}

  void visit(const Block& block) {
    for (Stmt stmt : block) visit(stmt);
  }
  VariableSet take() { return std::move(varying_); }

 private:
  void visit(Stmt stmt) {
    switch (stmt->kind) {
    case StmtKind::kLet: {
      const auto* let = as<Let>(stmt);
      if (varies(let->value)) varying_.insert(let->variable);
      return;
    }
    case StmtKind::kFor: {
      const auto* loop = as<For>(stmt);
      if (varies(loop->begin)) varying_.insert(loop->variable);
      return visit(loop->body);
    }
    case StmtKind::kIf: visit(as<If>(stmt)->then_body); return visit(as<If>(stmt)->else_body);
    case StmtKind::kAlloc: {
      local_buffers_.insert(as<Alloc>(stmt)->buffer);
      return;
    }
    case StmtKind::kReduce: return visit_reduce(*as<Reduce>(stmt));
    case StmtKind::kStore:
    case StmtKind::kAtomic:
    case StmtKind::kPrefetch:
    case StmtKind::kCheck:
    case StmtKind::kContract: return;
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
  }

  // A carried value that varies may make others vary in the next round.
  void visit_reduce(const Reduce& reduce) {
    if (varies(reduce.begin)) varying_.insert(reduce.variable);
    const bool is_divergent = varies(reduce.begin) || varies(reduce.end);
    for (bool changed = true; changed;) {
      changed = false;
      visit(reduce.body);
      for (size_t i = 0; i < reduce.carried.size(); ++i) {
        const Carried& carried = reduce.carried[i];
        if (is_divergent || varies(carried.init) || varies(reduce.yields[i]))
          changed |= varying_.insert(carried.variable).second;
      }
    }
    for (const Carried& carried : reduce.carried)
      if (varying_.contains(carried.variable)) varying_.insert(carried.result);
  }

  bool any_varies(const std::vector<Expr>& list) const {
    return std::any_of(list.begin(), list.end(), [&](Expr e) { return varies(e); });
  }

  bool varies(Expr e) const {
    if (!e) return false;
    switch (e->kind) {
    case ExprKind::kConstant: return false;
    case ExprKind::kVariable: return varying_.contains(as<Variable>(e));
    case ExprKind::kApply: return any_varies(as<Apply>(e)->args);
    case ExprKind::kCast: return varies(as<Cast>(e)->value);
    case ExprKind::kLoad: {
      const auto* load = as<Load>(e);
      return local_buffers_.contains(load->buffer) || any_varies(load->indices) ||
             varies(load->mask) || varies(load->otherwise);
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
  }

  VariableSet varying_;
  std::unordered_set<const Buffer*> local_buffers_;
};

}  // namespace

VariableSet varying_variables(const Block& body, VariableSet seeds) {
  Analysis analysis(std::move(seeds));
  analysis.visit(body);
  return analysis.take();
}

std::optional<size_t> end_of_step(const Reduce& scan) {
  VariableSet missing;
  for (const Expr yield : scan.yields)
    if (as<Variable>(yield) == nullptr || !missing.insert(as<Variable>(yield)).second)
      return std::nullopt;
  size_t end = 0;
  for (; end < scan.body.size() && !missing.empty(); ++end)
    if (const auto* let = as<Let>(scan.body[end])) missing.erase(let->variable);
  return missing.empty() ? std::optional(end) : std::nullopt;
}

}  // namespace mlcc::loop
