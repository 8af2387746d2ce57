#include "lower/contractions/points.h"

#include <optional>
#include <utility>
#include <vector>

#include "graph/contraction.h"
#include "lower/contractions/group_scales.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

using graph::Value;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;
using Index = std::vector<SymExpr>;

namespace {

Expr element_at(ContractionNest& nest, Value* value, const Index& index, Block& block) {
  nest.evaluator().push(&block);
  const Expr element = nest.evaluator().evaluate(value, index);
  nest.evaluator().pop();
  return element;
}

// Of two elements in a byte, those in its upper half stand behind the others.
Expr element_of_nibbles(ContractionNest& nest, const graph::Node& product, Block& block) {
  Index index = graph::index_of_operand(product, 1);
  Value* bytes = product.operand(1);
  const size_t dim = index.size() - 2;
  const SymExpr half = bytes->type().shape[dim];
  Assumptions assumptions = nest.context().graph.assumptions();
  const SymExpr is_upper = SymExpr::floordiv(index[dim], half);
  index[dim] = assumptions.simplify(SymExpr::mod(index[dim], half));
  const Expr byte = element_at(nest, bytes, index, block);
  const auto number = [&](int64_t value) {
    return loop::Constant::make_int(nest.arena(), DType::kU8, value);
  };
  const Expr shift = loop::Cast::make(nest.arena(), DType::kU8,
                                      nest.evaluator().index_expr(is_upper * graph::kBitsOfNibble));
  const Expr shifted = nest.apply(ScalarOp::kShr, {byte, shift});
  return nest.apply(ScalarOp::kAnd, {shifted, number((1 << graph::kBitsOfNibble) - 1)});
}

Expr factor_of(ContractionNest& nest, const graph::Node& product, size_t number, size_t operand,
               Block& block) {
  if (operand == 1 && nest.roles().has_nibbles()) return element_of_nibbles(nest, product, block);
  if (nest.roles().has_groups() || graph::is_computed_in_panels(product, operand))
    return element_at(nest, product.operand(operand), graph::index_of_operand(product, operand),
                      block);
  return nest.load(nest.buffer_of(operand, number), nest.roles().operand(operand).offset);
}

Expr sum_with_product(ContractionNest& nest, size_t product, Expr sum, Block& block) {
  const graph::Node& node = *nest.stages().products()[product];
  std::vector<Expr> factors;
  for (const size_t operand : {0, 1})
    factors.push_back(
        loop::Cast::make(nest.arena(), sum->dtype, factor_of(nest, node, product, operand, block)));
  // A CPU without vectors has no instruction for both of f64.
  const bool has_fma = sum->dtype != DType::kF64 || nest.context().machine.vector_bits > 0;
  if (is_float(sum->dtype) && has_fma)
    return nest.apply(ScalarOp::kFma, {factors[0], factors[1], sum});
  return nest.apply(ScalarOp::kAdd, {sum, nest.apply(ScalarOp::kMul, factors)});
}

bool has_one_group(const graph::Node& product) {
  return product.attr<Index>("reduced").front().equals_constant(1);
}

Expr sum_over(ContractionNest& nest, const std::vector<const Axis*>& axes, size_t i, size_t product,
              Expr init, Block& block);

// Of the terms of a group, whose axis is bound, and scaled.
Expr sum_with_group(ContractionNest& nest, const std::vector<const Axis*>& axes, size_t i,
                    size_t product, Expr sum, Block& block) {
  const Expr none = loop::Constant::make_int(nest.arena(), DType::kI32, 0);
  const Expr terms = sum_over(nest, axes, i, product, none, block);
  return plus_scaled(nest, *nest.stages().products()[product], terms, sum, block);
}

Expr sum_over(ContractionNest& nest, const std::vector<const Axis*>& axes, size_t i, size_t product,
              Expr init, Block& block) {
  if (i == axes.size()) return sum_with_product(nest, product, init, block);
  const Variable* at = nest.variable(axes[i]->name);
  nest.evaluator().bind_axis(axes[i]->name, at);
  const auto fresh = [&] {
    return Variable::make(nest.arena(), init->dtype, nest.arena().fresh_name("sum"));
  };
  const loop::Carried carried{fresh(), init, fresh()};
  Block inner;
  const bool are_groups = is_float(init->dtype) && nest.roles().has_groups();
  const Expr next = are_groups ? sum_with_group(nest, axes, i + 1, product, carried.variable, inner)
                               : sum_over(nest, axes, i + 1, product, carried.variable, inner);
  block.push_back(loop::Reduce::make(nest.arena(), at, nest.constant(0), nest.expr(axes[i]->extent),
                                     {}, {carried}, std::move(inner), {next}, std::nullopt));
  return carried.result;
}

Expr sum_of(ContractionNest& nest, const std::vector<const Axis*>& axes, size_t product,
            Block& block) {
  const bool is_group =
      nest.roles().has_groups() && has_one_group(*nest.stages().products()[product]);
  return is_group ? sum_with_group(nest, axes, 0, product, nest.zero(), block)
                  : sum_over(nest, axes, 0, product, nest.zero(), block);
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
                     sums.push_back(loop::Cast::make(nest.arena(),
                                                     stages.products()[i]->result()->type().dtype,
                                                     sum_of(nest, reduced, i, block)));
                   stages.emit_element(nest.evaluator(), sums, stages.all(), block);
                 });
}

}  // namespace mlcc::lower
