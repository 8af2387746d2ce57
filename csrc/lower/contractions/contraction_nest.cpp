#include "lower/contractions/contraction_nest.h"

#include <algorithm>

#include "graph/strided_view.h"

namespace mlcc::lower {

using graph::Node;
using graph::Value;
using loop::Expr;

Expr ContractionNest::zero() const {
  return is_float(accumulator()) ? loop::Constant::make_float(arena(), accumulator(), 0.0)
                                 : loop::Constant::make_int(arena(), accumulator(), 0);
}

Value* ContractionNest::base_of(size_t operand, size_t product) const {
  if (operand == roles_.vector() && roles_.may_convert())
    return bytes_behind(*stages_.products()[product], operand);
  if (operand == 0) return roles_.operand(0).base;
  return graph::strided_view(stages_.products()[product]->operand(1))->base;
}

const loop::Buffer* ContractionNest::buffer_of(size_t operand, size_t product) const {
  return evaluator_.buffers().buffer_of(base_of(operand, product), loop::Access::kIn);
}

int64_t ContractionNest::panels_of_iteration() const { return std::max(tiles_.turns, tiles_.run); }

SymExpr ContractionNest::rows_of_image() const {
  return roles_.rows() == nullptr ? SymExpr(1) : roles_.rows()->extent;
}

SymExpr ContractionNest::all_rows() const {
  return extent_of(roles_.shared_outer()) * rows_of_image();
}

int64_t ContractionNest::terms_of_word() const {
  const Node& product = stages_.first();
  return schedule::dot_terms(context_.machine, product.operand(0)->type().dtype,
                             product.operand(1)->type().dtype);
}

Expr ContractionNest::are_few_rows() {
  return apply(loop::ScalarOp::kLe, {expr(all_rows()), constant(tiles_.many.above)});
}

}  // namespace mlcc::lower
