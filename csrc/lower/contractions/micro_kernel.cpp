#include "lower/contractions/micro_kernel.h"

#include <algorithm>
#include <utility>

#include "lower/contractions/group_scales.h"

namespace mlcc::lower {

using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using schedule::Axis;

void MicroKernel::emit_sums(const TilePlace& place, Block& block) {
  const bool adds = has_parts(nest_);
  if (adds) append(block, zeros(place));
  TilePlace parts = place;
  if (has_sums_of_parts(nest_)) {
    const int64_t size = nest_.tiles().rows.front() * nest_.wide_columns();
    parts.sums[place.product] = {nest_.stack("parts", nest_.accumulator(), size, block)};
    append(block, zeros(parts));
  }
  append(block, over_parts(
                    nest_,
                    [&](const std::vector<DepthAxis>& depth) {
                      return contractions_of_panels(parts, depth, adds);
                    },
                    [&] { return add_parts(place, parts); }));
}

void MicroKernel::emit_terms_left(const TilePlace& place, Block& block) {
  const TileRoles& roles = nest_.roles();
  const SymExpr left = roles.terms_left();
  if (left.equals_constant(0)) return;
  const Axis &words = *roles.depth()[0], &terms = *roles.depth()[1];
  const auto add = [&](int64_t count) {
    return contractions(place, {{&words, words.extent, 1}, {&terms, 0, count}}, true);
  };
  if (const auto count = left.as_constant()) return append(block, add(*count));
  for (int64_t count = 1; count < *terms.extent.as_constant(); ++count) {
    const Expr is_this = nest_.apply(ScalarOp::kEq, {nest_.expr(left), nest_.constant(count)});
    block.push_back(loop::If::make(nest_.arena(), is_this, add(count), {}));
  }
}

Block MicroKernel::add_parts(const TilePlace& place, const TilePlace& parts) {
  return over_sums(place, [&](const SymExpr& at, Block& block) {
    const Sums &sum = place.sums[place.product], &part = parts.sums[parts.product];
    const SymExpr sum_at = sum.offset + at, part_at = part.offset + at;
    const Expr both = nest_.apply(
        ScalarOp::kAdd, {nest_.load(sum.buffer, sum_at), nest_.load(part.buffer, part_at)});
    nest_.store(sum.buffer, sum_at, both, block);
    nest_.store(part.buffer, part_at, nest_.zero(), block);
  });
}

Block MicroKernel::add_group(const TilePlace& place, const std::vector<DepthAxis>& group) {
  Block block;
  TilePlace terms = place;
  const int64_t size = nest_.tiles().rows.front() * nest_.tiles().columns;
  terms.sums[place.product] = {nest_.stack("group", DType::kI32, size, block)};
  append(block, contractions_by_height(terms, group, false));
  nest_.bind(*group.front().axis, group.front().begin, block);
  add_scaled(nest_, place, terms.sums[place.product], block);
  return block;
}

Block MicroKernel::zeros(const TilePlace& place) {
  const Sums& sums = place.sums[place.product];
  return over_sums(place, [&](const SymExpr& at, Block& block) {
    nest_.store(sums.buffer, sums.offset + at, nest_.zero(), block);
  });
}

// Over all of a tile, each at its place behind the first one.
Block MicroKernel::over_sums(const TilePlace& place,
                             const std::function<void(SymExpr, Block&)>& body) {
  const loop::LoopMode mode{loop::LoopKind::kVector, nest_.tiles().columns / 2, 2, 1};
  const int64_t columns = nest_.wide_columns();
  return nest_.loop_over("r", 0, place.rows, {}, [&](const SymExpr& row, Block& block) {
    append(block, nest_.loop_over("c", 0, columns, mode, [&](const SymExpr& column, Block& b) {
      body(row * columns + column, b);
    }));
  });
}

// Those of panels side by side, which lie so in the operand that is read in vectors too.
Block MicroKernel::contractions_of_panels(const TilePlace& place,
                                          const std::vector<DepthAxis>& depth, bool adds) {
  const schedule::ContractionTiles& tiles = nest_.tiles();
  if (tiles.panels == 1) return contractions(place, depth, adds);
  const SymExpr count = ceil_div(place.live_columns, tiles.columns);
  return nest_.loop_over("panel", 0, count, {}, [&](const SymExpr& panel, Block& block) {
    TilePlace part = place;
    const SymExpr columns = panel * tiles.columns;
    SymExpr& offset = part.sums[place.product].offset;
    offset = offset + columns;
    part.first_column = place.first_column + columns;
    if (!place.live_columns.equals_constant(nest_.wide_columns()))
      part.live_columns =
          nest_.let(SymExpr::min(place.live_columns - columns, tiles.columns), "live", block);
    else
      part.live_columns = tiles.columns;
    append(block, contractions(part, depth, adds));
  });
}

Block MicroKernel::contractions(const TilePlace& place, const std::vector<DepthAxis>& depth,
                                bool adds) {
  return nest_.roles().has_groups() ? add_group(place, depth)
                                    : contractions_by_height(place, depth, adds);
}

Block MicroKernel::contractions_by_height(const TilePlace& place,
                                          const std::vector<DepthAxis>& depth, bool adds) {
  const schedule::ContractionTiles& tiles = nest_.tiles();
  return nest_.by_height(tiles.rows, place.rows, [&](int64_t rows) -> loop::Stmt {
    const auto of = [&](bool are_few) {
      return contraction(place, rows, prefetch_.choose(rows, are_few), depth, adds);
    };
    if (!nest_.tells_few_from_many())
      return of(nest_.context().expected(nest_.all_rows()) <= tiles.many.above);
    const bool is_for_few = !tiles.many.may_have(rows);
    if (is_for_few || prefetch_.choose(rows, true) == prefetch_.choose(rows, false))
      return of(true);
    return loop::If::make(nest_.arena(), nest_.are_few_rows(), {of(true)}, {of(false)});
  });
}

loop::Stmt MicroKernel::contraction(const TilePlace& place, int64_t rows, Prefetch prefetch,
                                    const std::vector<DepthAxis>& depth, bool adds) {
  const int64_t columns = nest_.tiles().columns;
  const loop::Stmt whole = contraction(place, rows, columns, prefetch, depth, adds);
  if (!has_narrow_panel()) return whole;
  const int64_t half = columns / 2;
  const Expr is_narrow =
      nest_.apply(ScalarOp::kLe, {nest_.expr(place.live_columns), nest_.constant(half)});
  const loop::Stmt narrow = contraction(place, rows, half, prefetch, depth, adds);
  return loop::If::make(nest_.arena(), is_narrow, {narrow}, {whole});
}

// Whether half of the last panel, at least, only fills it up: its tiles leave that out.
bool MicroKernel::has_narrow_panel() const {
  const TileRoles& roles = nest_.roles();
  const int64_t columns = nest_.tiles().columns;
  const int64_t left = roles.columns().extent.as_constant().value_or(0) % columns;
  return roles.is_packed() && left > 0 && 2 * left <= columns;
}

// Where the tile begins in an operand at these terms, and its steps: `along` rows or columns, then
// along each axis of depth.
loop::TileRef MicroKernel::operand_of(size_t operand, const SymExpr& along, const TilePlace& place,
                                      const std::vector<DepthAxis>& depth) {
  const TileRoles& roles = nest_.roles();
  const bool is_computed = place.computed != nullptr && operand == roles.vector();
  const loop::Buffer* buffer =
      is_computed ? place.computed : nest_.buffer_of(operand, place.product);
  SymExpr origin = 0;
  if (!is_computed) {
    origin = roles.origin(operand, place.first_row, place.first_column, place.panel);
    for (const DepthAxis& axis : depth)
      origin = origin + roles.step(operand, *axis.axis) * axis.begin;
  }
  std::vector<Expr> steps = {nest_.expr(along)};
  for (const DepthAxis& axis : depth) steps.push_back(nest_.expr(roles.step(operand, *axis.axis)));
  if (depth.empty()) steps.push_back(nest_.constant(0));
  const bool is_halved = operand == roles.vector() && roles.has_nibbles();
  return loop::TileRef{buffer,
                       {nest_.expr(origin)},
                       std::move(steps),
                       {},
                       is_halved ? nest_.tiles().columns / 2 : 0};
}

loop::Stmt MicroKernel::contraction(const TilePlace& place, int64_t rows, int64_t columns,
                                    Prefetch prefetch, const std::vector<DepthAxis>& depth,
                                    bool adds) {
  const TileRoles& roles = nest_.roles();
  const Sums& sums = place.sums[place.product];
  std::vector<Expr> extents;
  for (const DepthAxis& axis : depth) extents.push_back(nest_.expr(axis.extent));
  if (extents.empty()) extents.push_back(nest_.constant(1));
  SymExpr row_step = 0;
  if (roles.has_gapless_rows())
    row_step = roles.step(roles.broadcast(), *roles.row_parts()[1]);
  else if (roles.rows() != nullptr && !roles.has_joined_rows())
    row_step = roles.step(roles.broadcast(), *roles.rows());
  loop::TileRef of_columns = operand_of(roles.vector(), roles.column_step(), place, depth);
  loop::TileRef of_rows = operand_of(roles.broadcast(), row_step, place, depth);
  const std::vector<SymExpr>& offsets = place.joined.offsets;
  for (size_t r = 0; r < offsets.size() && r < static_cast<size_t>(rows); ++r)
    of_rows.rows.push_back(nest_.expr(offsets[r]));
  // A packed operand has all columns of its last panel.
  const bool is_masked =
      !roles.is_packed() && !place.live_columns.equals_constant(nest_.tiles().columns);
  const Expr wide_columns = nest_.constant(nest_.wide_columns());
  return loop::Contract::make(
      nest_.arena(), {sums.buffer, {nest_.expr(sums.offset)}, {wide_columns, nest_.constant(1)}},
      std::move(of_rows), std::move(of_columns), rows, columns,
      is_masked ? nest_.expr(place.live_columns) : nullptr, std::move(extents), adds,
      prefetch_.lines(place, prefetch, depth));
}

}  // namespace mlcc::lower
