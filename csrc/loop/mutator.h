// Rebuilding kernels: the base of loop -> loop transformations.
//
// A Mutator maps expressions and statements bottom up; what does not change keeps its pointer.
// Override the hooks for what is to change and call the base for the rest. Shared expressions are
// visited once per Mutator, so an override for expressions must depend on the expression alone.
#pragma once

#include <optional>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "loop/ir.h"

namespace mlcc::loop {

class Mutator {
 public:
  explicit Mutator(Arena& arena) : arena_(arena) {}
  virtual ~Mutator() = default;
  Mutator(const Mutator&) = delete;
  Mutator& operator=(const Mutator&) = delete;

  Expr mutate(Expr e);  // null stays null
  Block mutate(const Block& block);
  Kernel mutate(const Kernel& kernel);  // sizes and buffers by the hooks below, then the phases

 protected:
  // Replaces one expression whose operands are mutated already.
  virtual Expr rewrite(Expr e) { return e; }
  // Replaces a variable where it is defined and where it is used, or a buffer. Called in the order
  // of the text.
  virtual const Variable* replace(const Variable* variable) { return variable; }
  virtual const Buffer* replace(const Buffer* buffer) { return buffer; }
  // Appends what replaces `stmt`: nothing, one statement or several. The base rebuilds it from its
  // parts.
  virtual void mutate_into(Block& out, Stmt stmt);

  // The statement with all its parts mutated; the same pointer if none changed.
  Stmt rebuild(Stmt stmt);
  // A buffer like `buffer` with mutated shape and strides; the same pointer if neither changed.
  const Buffer* rebuild(const Buffer* buffer);
  std::vector<Expr> mutate(const std::vector<Expr>& list);

  Arena& arena_;

 private:
  Expr rebuild_expr(Expr e);
  Stmt rebuild_reduce(Stmt stmt);
  Stmt rebuild_contract(Stmt stmt);
  TileRef mutate(const TileRef& tile);

  std::unordered_map<Expr, Expr> done_;
};

// The expressions that a statement evaluates itself (not those of statements inside it), in the
// order of the text.
std::vector<Expr> operands(Stmt stmt);
// What a statement itself binds: its variable, what it carries and what that gives.
std::vector<const Variable*> bound_variables(Stmt stmt);
// The blocks directly inside a statement: a loop's body, the arms of an if.
std::vector<const Block*> blocks(Stmt stmt);

// An expression with another one in the place of a variable.
Expr substitute(Arena& arena, Expr e, const Variable* variable, Expr replacement);

// A copy of a block with variables of its own; buffers are shared.
Block copy_of(Arena& arena, const Block& block);

// The operands of an expression in the order of the text: a load's indices, mask and otherwise, an
// op's arguments.
std::vector<Expr> operands(Expr e);

// Calls visit(e) once for each expression at or below `roots`, operands first.
template <typename Visit>
void for_each_expr(const std::vector<Expr>& roots, Visit&& visit) {
  std::unordered_set<Expr> seen;
  const auto walk = [&](const auto& self, Expr e) -> void {
    if (!seen.insert(e).second) return;
    for (const Expr operand : operands(e)) self(self, operand);
    visit(e);
  };
  for (const Expr root : roots) walk(walk, root);
}

// Calls visit(stmt) for each statement of the block and of the blocks inside, in the order of the
// text.
template <typename Visit>
void for_each_stmt(const Block& block, Visit&& visit) {
  for (const Stmt stmt : block) {
    visit(stmt);
    for (const Block* inner : blocks(stmt)) for_each_stmt(*inner, visit);
  }
}

}  // namespace mlcc::loop
