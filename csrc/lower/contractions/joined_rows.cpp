#include "lower/contractions/joined_rows.h"

#include <utility>
#include <vector>

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

namespace {

// From one row to the next, without a division by a length that only the kernel knows.
void fill_tables(ContractionNest& nest, JoinedRows& joined, Block& block) {
  const TileRoles& roles = nest.roles();
  const SymExpr& length = roles.row_parts()[1]->extent;
  const SymExpr step = roles.step(roles.broadcast(), *roles.row_parts()[1]);
  SymExpr line = joined.first_line, place = joined.first_place;
  const bool has_offsets = joined.goes_on == nullptr;
  if (has_offsets) joined.offsets = {0};
  for (int64_t row = 0;; ++row) {
    nest.store(joined.lines, row, nest.expr(line), block);
    nest.store(joined.places, row, nest.expr(place), block);
    if (row + 1 == nest.tiles().rows.front()) return;
    const Expr is_last = nest.apply(ScalarOp::kEq, {nest.expr(place + 1), nest.expr(length)});
    if (has_offsets) {
      const SymExpr& at = joined.offsets.back();
      joined.offsets.push_back(
          nest.select(is_last, at + step + roles.jump(), at + step, "ahead", block));
    }
    line = nest.select(is_last, line + 1, line, "line", block);
    place = nest.select(is_last, 0, place + 1, "place", block);
  }
}

// Where the length of image rows is not known.
JoinedRows follow_rows(ContractionNest& nest, const SymExpr& first_row, const SymExpr& within,
                       const SymExpr& rows, Block& block) {
  const int64_t count = nest.tiles().rows.front();
  const SymExpr& length = nest.roles().row_parts()[1]->extent;
  JoinedRows joined;
  joined.lines = nest.stack("lines", DType::kI64, count, block);
  joined.places = nest.stack("places", DType::kI64, count, block);
  joined.first_line = nest.let(SymExpr::floordiv(first_row, length), "line", block);
  joined.first_place = within;
  if (!nest.roles().has_gapless_rows()) {
    fill_tables(nest, joined, block);
    return joined;
  }
  const Variable* goes_on =
      Variable::make(nest.arena(), DType::kBool, nest.arena().fresh_name("goes_on"));
  const Expr is_behind = nest.apply(ScalarOp::kGt, {nest.expr(within + rows), nest.expr(length)});
  block.push_back(loop::Let::make(nest.arena(), goes_on, is_behind));
  joined.goes_on = goes_on;
  Block tables;
  fill_tables(nest, joined, tables);
  block.push_back(loop::If::make(nest.arena(), goes_on, std::move(tables), {}));
  return joined;
}

}  // namespace

JoinedRows join_rows(ContractionNest& nest, const SymExpr& first_row, const SymExpr& rows,
                     Block& block) {
  const TileRoles& roles = nest.roles();
  if (!roles.has_joined_rows()) return {};
  const SymExpr& length = roles.row_parts()[1]->extent;
  if (length.is_constant() && roles.has_gapless_rows()) return {};
  const SymExpr within = nest.let(SymExpr::mod(first_row, length), "within", block);
  if (!length.is_constant()) return follow_rows(nest, first_row, within, rows, block);
  JoinedRows joined{{0}};
  while (static_cast<int64_t>(joined.offsets.size()) < nest.tiles().rows.front())
    joined.offsets.push_back(nest.let(
        roles.row_offset(within, static_cast<int64_t>(joined.offsets.size())), "ahead", block));
  return joined;
}

void bind_rows(ContractionNest& nest, const TilePlace& place, const SymExpr& row, bool goes_on,
               Block& block) {
  const std::vector<const Axis*>& parts = nest.roles().row_parts();
  const JoinedRows& joined = place.joined;
  if (joined.lines == nullptr) return nest.bind_axes(parts, place.first_row + row, block);
  if (!goes_on) {
    nest.bind(*parts[0], joined.first_line, block);
    return nest.bind(*parts[1], joined.first_place + row, block);
  }
  const auto bind = [&](const Axis& axis, const loop::Buffer* buffer) {
    const Variable* bound = nest.variable(axis.name);
    block.push_back(loop::Let::make(nest.arena(), bound, nest.load(buffer, row)));
    nest.evaluator().bind_axis(axis.name, bound);
  };
  bind(*parts[0], joined.lines);
  bind(*parts[1], joined.places);
}

}  // namespace mlcc::lower
