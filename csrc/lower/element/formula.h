// Scalar formulas of the op table as loop-IR expressions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "graph/graph.h"
#include "loop/ir.h"

namespace mlcc::lower {

// Parses each op's formula once per dtype and puts arguments in place of a, b, c.
class Formulas {
 public:
  explicit Formulas(loop::Arena& arena) : arena_(arena) {}

  // `dtype` is the one the op is computed in; args in operand order.
  loop::Expr instantiate(graph::Op op, DType dtype, const std::vector<loop::Expr>& args);
  // What a pointwise node computes for an element, in simple ops (loop/cost.h).
  int64_t cost(const graph::Node& node);

 private:
  loop::Arena& arena_;
  std::map<std::pair<graph::Op, DType>, loop::Expr> parsed_;
};

}  // namespace mlcc::lower
