#include "codegen/cpu/varying.h"

#include <algorithm>

#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using loop::ExprKind;
using loop::StmtKind;

class Analysis {
 public:
  explicit Analysis(VariableSet seeds) : varying_(std::move(seeds)) {}

  void visit(const loop::Block& block) {
    for (loop::Stmt stmt : block) visit(stmt);
  }
  VariableSet take() { return std::move(varying_); }

 private:
  void visit(loop::Stmt stmt) {
    switch (stmt->kind) {
    case StmtKind::kLet: {
      const auto* let = loop::as<loop::Let>(stmt);
      if (varies(let->value)) varying_.insert(let->variable);
      return;
    }
    case StmtKind::kFor: {
      const auto* loop = loop::as<loop::For>(stmt);
      if (varies(loop->begin)) varying_.insert(loop->variable);
      return visit(loop->body);
    }
    case StmtKind::kIf:
      visit(loop::as<loop::If>(stmt)->then_body);
      return visit(loop::as<loop::If>(stmt)->else_body);
    case StmtKind::kAlloc: {
      local_buffers_.insert(loop::as<loop::Alloc>(stmt)->buffer);
      return;
    }
    case StmtKind::kReduce: return visit_reduce(*loop::as<loop::Reduce>(stmt));
    case StmtKind::kStore:
    case StmtKind::kAtomic:
    case StmtKind::kCheck:
    case StmtKind::kContract: return;
    }
    MLCC_UNREACHABLE("statement kind ", static_cast<int>(stmt->kind));
  }

  // A carried value that varies may make others vary in the next round.
  void visit_reduce(const loop::Reduce& reduce) {
    if (varies(reduce.begin)) varying_.insert(reduce.variable);
    const bool is_divergent = varies(reduce.begin) || varies(reduce.end);
    for (bool changed = true; changed;) {
      changed = false;
      visit(reduce.body);
      for (size_t i = 0; i < reduce.carried.size(); ++i) {
        const loop::Carried& carried = reduce.carried[i];
        if (is_divergent || varies(carried.init) || varies(reduce.yields[i]))
          changed |= varying_.insert(carried.variable).second;
      }
    }
    for (const loop::Carried& carried : reduce.carried)
      if (varying_.contains(carried.variable)) varying_.insert(carried.result);
  }

  bool any_varies(const std::vector<loop::Expr>& list) const {
    return std::any_of(list.begin(), list.end(), [&](loop::Expr e) { return varies(e); });
  }

  bool varies(loop::Expr e) const {
    if (!e) return false;
    switch (e->kind) {
    case ExprKind::kConstant: return false;
    case ExprKind::kVariable: return varying_.contains(loop::as<loop::Variable>(e));
    case ExprKind::kApply: return any_varies(loop::as<loop::Apply>(e)->args);
    case ExprKind::kCast: return varies(loop::as<loop::Cast>(e)->value);
    case ExprKind::kLoad: {
      const auto* load = loop::as<loop::Load>(e);
      return local_buffers_.contains(load->buffer) || any_varies(load->indices) ||
             varies(load->mask) || varies(load->otherwise);
    }
    }
    MLCC_UNREACHABLE("expression kind ", static_cast<int>(e->kind));
  }

  VariableSet varying_;
  std::unordered_set<const loop::Buffer*> local_buffers_;
};

}  // namespace

VariableSet varying_variables(const loop::Block& body, VariableSet seeds) {
  Analysis analysis(std::move(seeds));
  analysis.visit(body);
  return analysis.take();
}

}  // namespace mlcc::codegen::cpu
