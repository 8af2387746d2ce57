#include "lower/contractions/group_scales.h"

#include <array>
#include <functional>
#include <vector>

#include "graph/contraction.h"
#include "lower/contractions/joined_rows.h"

namespace mlcc::lower {

using graph::Node;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using Index = std::vector<SymExpr>;

namespace {

// What stands beside the terms of a group.
struct Beside {
  Expr lhs_scale = nullptr, rhs_scale = nullptr;
  Expr start = nullptr;  // null: 0
};

Expr element_at(ContractionNest& nest, const Node& product, size_t operand, const Index& index,
                DType dtype, Block& block) {
  nest.evaluator().push(&block);
  const Expr element = nest.evaluator().evaluate(product.operand(operand), index);
  nest.evaluator().pop();
  return loop::Cast::make(nest.arena(), dtype, element);
}

bool has_starts(const Node& product) { return product.operands().size() > graph::kStarts; }

// Reads those operands for which `wanted` holds.
void read(ContractionNest& nest, const Node& product,
          const std::function<bool(const Index&)>& wanted,
          const std::function<Index(const Index&)>& at, Beside& beside, Block& block) {
  const auto take = [&](size_t operand, DType dtype, Expr& into) {
    const Index& index = graph::index_of_operand(product, operand);
    if (wanted(index)) into = element_at(nest, product, operand, at(index), dtype, block);
  };
  take(graph::kLhsScales, nest.accumulator(), beside.lhs_scale);
  take(graph::kRhsScales, nest.accumulator(), beside.rhs_scale);
  if (has_starts(product)) take(graph::kStarts, DType::kI32, beside.start);
}

Expr scaled(ContractionNest& nest, const Beside& beside, Expr terms, Expr sum) {
  if (beside.start != nullptr) terms = nest.apply(ScalarOp::kAdd, {terms, beside.start});
  const Expr whole = loop::Cast::make(nest.arena(), nest.accumulator(), terms);
  const Expr of_row = nest.apply(ScalarOp::kMul, {whole, beside.lhs_scale});
  return nest.apply(ScalarOp::kFma, {of_row, beside.rhs_scale, sum});
}

// `goes_on`: rows may belong to several image rows.
Block over_rows(ContractionNest& nest, const TilePlace& place, const Sums& terms, bool goes_on) {
  const TileRoles& roles = nest.roles();
  const Node& product = *nest.stages().products()[place.product];
  const int64_t columns = nest.tiles().columns;
  const loop::LoopMode vectors{loop::LoopKind::kVector, columns / 2, 2, 1};
  const Sums& sums = place.sums[place.product];
  return nest.loop_over("r", 0, place.rows, {}, [&](const SymExpr& row, Block& rows) {
    bind_rows(nest, place, row, goes_on, rows);
    Beside beside;
    const auto is_of_columns = [&](const Index& index) { return roles.is_along_columns(index); };
    read(nest, product, std::not_fn(is_of_columns), std::identity(), beside, rows);
    append(
        rows,
        nest.loop_over("c", 0, place.live_columns, vectors, [&](const SymExpr& column, Block& b) {
          nest.evaluator().assume_index(*column.as_symbol(), columns);
          const auto at = [&](const Index& index) {
            return roles.index_in_panel(index, place.panel, {}, column);
          };
          read(nest, product, is_of_columns, at, beside, b);
          const SymExpr of_tile = row * nest.wide_columns() + column;
          const Expr sum = nest.load(sums.buffer, sums.offset + of_tile);
          const Expr group = nest.load(terms.buffer, terms.offset + of_tile);
          nest.store(sums.buffer, sums.offset + of_tile, scaled(nest, beside, group, sum), b);
        }));
  });
}

}  // namespace

void add_scaled(ContractionNest& nest, const TilePlace& place, const Sums& terms, Block& block) {
  const Expr goes_on = place.joined.goes_on;
  if (goes_on == nullptr) return append(block, over_rows(nest, place, terms, true));
  block.push_back(loop::If::make(nest.arena(), goes_on, over_rows(nest, place, terms, true),
                                 over_rows(nest, place, terms, false)));
}

Expr plus_scaled(ContractionNest& nest, const Node& product, Expr terms, Expr sum, Block& block) {
  Beside beside;
  read(nest, product, [](const Index&) { return true; }, std::identity(), beside, block);
  return scaled(nest, beside, terms, sum);
}

}  // namespace mlcc::lower
