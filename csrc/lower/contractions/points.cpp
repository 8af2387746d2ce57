#include "lower/contractions/points.h"

#include <optional>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

namespace {

Expr computed_element(ContractionNest& nest, size_t product, size_t operand, Block& block) {
  const graph::Node& node = *nest.stages().products()[product];
  nest.evaluator().push(&block);
  const Expr element = nest.evaluator().evaluate(
      node.operand(operand), node.attr<std::vector<SymExpr>>(operand == 0 ? "lhs" : "rhs"));
  nest.evaluator().pop();
  return element;
}

Expr sum_with_product(ContractionNest& nest, size_t product, Expr sum, Block& block) {
  std::vector<Expr> factors;
  for (const size_t operand : {0, 1}) {
    if (graph::is_computed_in_panels(*nest.stages().products()[product], operand)) {
      const Expr element = computed_element(nest, product, operand, block);
      factors.push_back(loop::Cast::make(nest.arena(), nest.accumulator(), element));
      continue;
    }
    const loop::Buffer* buffer = nest.buffer_of(operand, product);
    const Expr element = nest.load(buffer, nest.roles().operand(operand).offset);
    factors.push_back(loop::Cast::make(nest.arena(), nest.accumulator(), element));
  }
  if (is_float(nest.accumulator()))
    return nest.apply(ScalarOp::kFma, {factors[0], factors[1], sum});
  return nest.apply(ScalarOp::kAdd, {sum, nest.apply(ScalarOp::kMul, factors)});
}

Expr sum_over(ContractionNest& nest, const std::vector<const Axis*>& axes, size_t i, size_t product,
              Expr init, Block& block) {
  if (i == axes.size()) return sum_with_product(nest, product, init, block);
  const Variable* at = nest.variable(axes[i]->name);
  nest.evaluator().bind_axis(axes[i]->name, at);
  const auto fresh = [&] {
    return Variable::make(nest.arena(), nest.accumulator(), nest.arena().fresh_name("sum"));
  };
  const loop::Carried carried{fresh(), init, fresh()};
  Block inner;
  const Expr next = sum_over(nest, axes, i + 1, product, carried.variable, inner);
  block.push_back(loop::Reduce::make(nest.arena(), at, nest.constant(0), nest.expr(axes[i]->extent),
                                     {}, {carried}, std::move(inner), {next}, std::nullopt));
  return carried.result;
}

}  // namespace

void emit_points(ContractionNest& nest) {
  const ProductStages& stages = nest.stages();
  std::vector<const Axis*> kept, reduced;
  for (const Axis& axis : nest.roles().axes().axes())
    (axis.reduced ? reduced : kept).push_back(&axis);
  nest.add_range(extent_of(kept), extent_of(reduced), schedule::kGrainPoints,
                 [&](const SymExpr& at, Block& block) {
                   nest.bind_axes(kept, at, block);
                   std::vector<Expr> sums;
                   for (size_t i = 0; i < stages.products().size(); ++i)
                     sums.push_back(loop::Cast::make(
                         nest.arena(), stages.products()[i]->result()->type().dtype,
                         sum_over(nest, reduced, 0, i, nest.zero(), block)));
                   stages.emit_element(nest.evaluator(), sums, stages.all(), block);
                 });
}

}  // namespace mlcc::lower
