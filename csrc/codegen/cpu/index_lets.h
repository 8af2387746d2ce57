// The lets of a loop's body that compute places in memory from what is defined before it, and index
// expressions without them.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "loop/ir.h"
#include "types/symbolic.h"

namespace mlcc::codegen::cpu {

class IndexLets {
 public:
  // In the order of the text.
  void add(const loop::Let& let);

  // Over what is defined before the loop, and its variables; nothing where the expression is no
  // index, also where a part that is none falls out of the sum (`0 * %x`): the whole is evaluated.
  std::optional<SymExpr> index_of(loop::Expr e) const;

  const std::vector<const loop::Let*>& lets() const { return lets_; }

 private:
  // Nothing where a let is no index.
  std::map<std::string, std::optional<SymExpr>, std::less<>> definitions_;
  std::vector<const loop::Let*> lets_;  // those that are
};

}  // namespace mlcc::codegen::cpu
