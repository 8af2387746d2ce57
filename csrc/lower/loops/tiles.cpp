#include "lower/loops/tiles.h"

#include <algorithm>

namespace mlcc::lower {

using graph::Value;
using loop::Block;
using loop::Expr;
using loop::LoopKind;
using loop::LoopMode;
using loop::ScalarOp;
using loop::Variable;
using schedule::Axis;

namespace {

// Tiles of kTile x kTile elements, each row one element longer so that columns lie in different
// banks of shared memory; where a tile begins, and places in it.
constexpr int64_t kTile = 32;
constexpr size_t kMostTiles = 4;
constexpr const char* kVectorBegin = "vector_begin";
constexpr const char* kTileBegin = "tile_begin";
constexpr const char* kVectorPlace = "vector_place";
constexpr const char* kTilePlace = "tile_place";

SymExpr tiles_along(const Axis& axis) {
  return SymExpr::floordiv(axis.extent + (kTile - 1), kTile);
}

SymExpr place_in_tile() {
  return SymExpr::symbol(kVectorPlace) * (kTile + 1) + SymExpr::symbol(kTilePlace);
}

}  // namespace

bool Tiles::is_tiled(size_t axis) const {
  return static_cast<int>(axis) == nest_.schedule().vector_axis ||
         static_cast<int>(axis) == nest_.schedule().tile_axis;
}

// Number `parallel` of a tile, as the lets of the outer axes and where the tile begins.
Block Tiles::tile_lets(const Variable* parallel, SymExpr& extent) {
  loop::Arena& arena = context_.arena;
  std::vector<const Axis*> outer;
  for (size_t i = 0; i < nest_.axes().size(); ++i)
    if (!is_tiled(i)) outer.push_back(&nest_.axes()[i]);
  const SymExpr count = tiles_along(vector_axis()) * tiles_along(tile_axis());
  Block body = nest_.outer_lets(outer, count, parallel);
  extent = count;
  for (const Axis* axis : outer) extent = extent * axis->extent;
  const auto begin = [&](const char* name, Expr number) {
    const Variable* variable = Variable::make(arena, DType::kI64, arena.fresh_name(name));
    body.push_back(loop::Let::make(
        arena, variable,
        loop::apply(arena, ScalarOp::kMul, {number, loop::int_constant(arena, kTile)})));
    evaluator_.bind_axis(name, variable);
  };
  const Expr along_vector = loop::from_symbolic(arena, tiles_along(vector_axis()));
  Expr tile = parallel;
  if (!outer.empty())
    tile = loop::apply(arena, ScalarOp::kMod, {tile, loop::from_symbolic(arena, count)});
  begin(kVectorBegin, loop::apply(arena, ScalarOp::kMod, {tile, along_vector}));
  begin(kTileBegin, loop::apply(arena, ScalarOp::kFloorDiv, {tile, along_vector}));
  return body;
}

// One pass over a tile's points, the vector axis running fastest or the other one. Gives the
// condition that the point is inside.
Expr Tiles::tile_point(const Variable* point, bool vector_is_fast, Block& block) {
  loop::Arena& arena = context_.arena;
  const Expr width = loop::int_constant(arena, kTile);
  const Expr fast = loop::apply(arena, ScalarOp::kMod, {point, width});
  const Expr slow = loop::apply(arena, ScalarOp::kFloorDiv, {point, width});
  const auto bind = [&](const Axis& axis, const char* begin, const char* within, Expr place) {
    const Variable* local = Variable::make(arena, DType::kI64, arena.fresh_name(within));
    block.push_back(loop::Let::make(arena, local, place));
    evaluator_.bind_axis(within, local);
    const Variable* variable = nest_.pass_variable(axis);
    block.push_back(loop::Let::make(
        arena, variable, evaluator_.nest_expr(SymExpr::symbol(begin) + SymExpr::symbol(within))));
    return loop::apply(arena, ScalarOp::kLt, {variable, loop::from_symbolic(arena, axis.extent)});
  };
  const Expr a = bind(vector_axis(), kVectorBegin, kVectorPlace, vector_is_fast ? fast : slow);
  const Expr b = bind(tile_axis(), kTileBegin, kTilePlace, vector_is_fast ? slow : fast);
  return loop::apply(arena, ScalarOp::kAnd, {a, b});
}

bool Tiles::is_exchanged(const Recording::MemoryAccess& access, const SymExpr& offset) const {
  if (access.is_store || access.is_masked) return false;
  const std::vector<std::string> names = offset.symbols();
  const auto& symbols = context_.graph.symbols();
  const bool is_known = std::all_of(names.begin(), names.end(), [&](const std::string& name) {
    const auto is_axis = [&](const Axis& axis) { return axis.name == name; };
    const auto is_size = [&](const graph::Symbol& symbol) { return symbol.name == name; };
    return std::any_of(nest_.axes().begin(), nest_.axes().end(), is_axis) ||
           std::any_of(symbols.begin(), symbols.end(), is_size);
  });
  const auto along = offset.linear_in(vector_axis().name);
  const auto across = offset.linear_in(tile_axis().name);
  return is_known && along && across && across->coefficient.equals_constant(1) &&
         !along->coefficient.equals_constant(0);
}

// Buffers of the tiles into `body`, the loads that fill them into `fill`.
void Tiles::fill_tiles(const Recording& recording, Expr is_inside, Block& body, Block& fill) {
  loop::Arena& arena = context_.arena;
  std::vector<std::pair<const Value*, SymExpr>> seen;
  for (const Recording::MemoryAccess& access : recording.accesses) {
    const SymExpr offset = nest_.nest_axes().map(access.offset);
    const std::pair<const Value*, SymExpr> key{access.value, offset};
    if (!is_exchanged(access, offset) || seen.size() == kMostTiles ||
        std::find(seen.begin(), seen.end(), key) != seen.end())
      continue;
    seen.push_back(key);
    const loop::Buffer* tile = arena.make_buffer({arena.fresh_name("tile"),
                                                  access.value->type().dtype,
                                                  loop::Scope::kStack,
                                                  loop::Access::kInOut,
                                                  {loop::int_constant(arena, kTile * (kTile + 1))},
                                                  {}});
    body.push_back(loop::Alloc::make(arena, tile));
    const Expr element =
        loop::Load::make(arena, evaluator_.buffers().buffer_of(access.value, loop::Access::kIn),
                         {evaluator_.nest_expr(offset)}, is_inside);
    fill.push_back(
        loop::Store::make(arena, tile, {evaluator_.nest_expr(place_in_tile())}, element));
    evaluator_.define_tile(access.value, offset, {tile, place_in_tile()});
  }
}

loop::Stmt Tiles::over_points(const Variable* point, Block block) const {
  loop::Arena& arena = context_.arena;
  const LoopMode mode{LoopKind::kVector, 1, 1, 1};
  return loop::For::make(arena, point, loop::int_constant(arena, 0),
                         loop::int_constant(arena, kTile * kTile), mode, std::move(block));
}

Nest::Phase Tiles::build(const Recording& recording, const Nest::Row& row) {
  loop::Arena& arena = context_.arena;
  const Variable* parallel = Variable::make(arena, DType::kI64, arena.fresh_name("p"));
  Nest::Phase phase;
  phase.range.grain = 1;
  Block body = tile_lets(parallel, phase.range.extent);

  Block fill;
  const Variable* point = Variable::make(arena, DType::kI64, arena.fresh_name("t"));
  const Expr is_inside = tile_point(point, false, fill);
  fill_tiles(recording, is_inside, body, fill);
  body.push_back(over_points(point, std::move(fill)));

  Block work, inside;
  const Variable* target = Variable::make(arena, DType::kI64, arena.fresh_name("t"));
  const Expr condition = tile_point(target, true, work);
  row(inside);
  work.push_back(loop::If::make(arena, condition, std::move(inside)));
  body.push_back(over_points(target, std::move(work)));

  LoopMode grid;
  grid.kind = LoopKind::kParallel;
  grid.group = nest_.schedule().group;
  phase.block = {loop::For::make(arena, parallel, loop::int_constant(arena, 0),
                                 loop::from_symbolic(arena, phase.range.extent), grid,
                                 std::move(body))};
  return phase;
}

}  // namespace mlcc::lower
