#include "lower/contractions/contraction.h"

#include <string_view>
#include <utility>
#include <vector>

#include "lower/contractions/borders.h"
#include "lower/contractions/contraction_nest.h"
#include "lower/contractions/points.h"
#include "lower/contractions/prefetch.h"
#include "lower/contractions/product_stages.h"
#include "lower/contractions/tile_choice.h"
#include "lower/contractions/tile_order.h"
#include "lower/contractions/tile_roles.h"
#include "lower/element/evaluator.h"

namespace mlcc::lower {

using loop::Block;

namespace {

SymExpr blocks_of(const SymExpr& tiles, const SymExpr& of_block) {
  return SymExpr::max(ceil_div(tiles, of_block), 1);
}

// Of few tiles in all blocks have fewer. The kernel finds that out by itself: its code is the
// same for all sizes that are not known while compiling.
SymExpr tiles_of_block(const ContractionNest& nest, const SymExpr& tiles, const SymExpr& panels) {
  const SymExpr all = tiles * panels * extent_of(nest.roles().separate_outer());
  const SymExpr shared = SymExpr::floordiv(all, nest.tiles().iterations);
  return SymExpr::max(SymExpr::min(shared, nest.tiles().tiles), 1);
}

// The phase whose iterations are blocks of tiles times shares of panels.
void emit_tiles(ContractionNest& nest) {
  const TileRoles& roles = nest.roles();
  const schedule::ContractionTiles& tiles = nest.tiles();
  const int64_t of_iteration = nest.wide_columns() * nest.panels_of_iteration();
  const SymExpr panels = ceil_div(roles.columns().extent, of_iteration);
  // Of these and the rows below, all are the same for the whole kernel.
  Block head;
  const SymExpr rows = nest.rows_of_image();
  const SymExpr tile_rows = nest.choose_height(tiles.rows, tiles.many, tiles.costs, rows, head);
  const SymExpr row_tiles = nest.let(ceil_div(rows, tile_rows), "tiles", head);
  const SymExpr images = extent_of(roles.shared_outer());
  const SymExpr all_tiles = nest.let(images * row_tiles, "all", head);
  // What the runtime splits is counted with the largest tile.
  const SymExpr high_tiles = images * ceil_div(rows, tiles.rows.front());
  const SymExpr of_block = tiles_of_block(nest, high_tiles, panels);
  // Blocks that take the same columns one after the other, and how many times so many there are.
  const SymExpr near =
      tiles.shares_panels ? blocks_of(SymExpr::min(high_tiles, tiles.tiles), of_block) : SymExpr(1);
  const SymExpr times = ceil_div(blocks_of(high_tiles, of_block), near);
  PanelPrefetch prefetch(nest, of_block * near, high_tiles);
  const SymExpr terms = extent_of(roles.depth()) * tiles.rows.front() * of_block * of_iteration *
                        nest.stages().count();
  nest.add_range(
      extent_of(roles.separate_outer()) * times * panels * near, terms, tiles.grain_terms,
      [&](SymExpr at, Block& block) {
        append(block, head);
        const auto take = [&](const SymExpr& extent, std::string_view name) {
          const SymExpr place = nest.let(SymExpr::mod(at, extent), name, block);
          at = nest.let(SymExpr::floordiv(at, extent), "rest", block);
          return place;
        };
        const SymExpr last = take(near, "block");
        const SymExpr panel = take(panels, "panel");
        const SymExpr row_block = take(times, "blocks") * near + last;
        nest.bind_axes(roles.separate_outer(), at, block);
        const SymExpr per_block = nest.let(ceil_div(all_tiles, times * near), "count", block);
        const SymExpr begin = row_block * per_block;
        const SymExpr end = SymExpr::min(begin + per_block, all_tiles);
        emit_tiles_of(nest, prefetch, {begin, end, panel, row_tiles, rows, tile_rows}, block);
      });
}

}  // namespace

void lower_contraction(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered) {
  const ProductStages stages(context);
  const ProductStages::Recorded recorded = stages.record();
  const schedule::Machine& machine = context.machine;
  const bool has_vectors = !machine.is_gpu && machine.vector_bits > 0;
  const int64_t lanes = schedule::vector_columns(machine, stages.accumulator());
  TileRoles roles(context, stages.first(), recorded.accesses.indices, has_vectors ? lanes : 0);
  const auto computed = [&](int64_t rows) {
    return schedule::computed_rows(rows, machine, roles.vectors());
  };
  if (roles.has_tiles()) roles.join_rows(computed, !is_in_tile_registers(context, stages, roles));
  Evaluator evaluator(context, buffers, context.group.domain, &roles.axes(), nullptr);
  ContractionNest nest(context, evaluator, lowered, roles, stages, recorded.ops);
  if (roles.has_tiles()) {
    const auto rows = nest.all_rows().as_constant();
    if (roles.may_convert() && rows &&
        *rows > schedule::most_rows_in_registers(machine, roles.vectors()) &&
        *rows <= schedule::most_rows(machine, roles.vectors()))
      roles.convert_in_tiles();
    nest.set_tiles(choose_tiles(nest));
    lowered.schedule.tiles = nest.tiles();
    emit_tiles(nest);
  } else {
    emit_points(nest);
  }
  fill_borders(context, evaluator, nest);
}

}  // namespace mlcc::lower
