#include "lower/contractions/prefetch.h"

#include <algorithm>
#include <bit>

namespace mlcc::lower {

namespace {

// The figures behind these: docs/decisions/0025-contractions.md.

// How far ahead in its own panel a tile of few rows asks, in bytes.
constexpr int64_t kBytesAheadInPanel = 8192;
// Tiles that share a panel where their number is not known: of two kinds, so that a trace at
// another size mostly finds the same code.
constexpr int64_t kSharesOfMany = 4, kSharesOfFew = 2;
// A pack of at most this part of a second-level cache is not worth the registers of asking, where
// the number of rows is not known and pointers fill them.
constexpr int64_t kPartOfSmallPack = 16;
// The share of a last-level cache, in eighths, up to which one row asks for its weights.
constexpr int64_t kEighthsOfLastLevel = 3;

int64_t expected_sharers(const ContractionNest& nest, const SymExpr& tiles,
                         const SymExpr& all_tiles) {
  const Context& context = nest.context();
  if (all_tiles.is_constant())
    return std::max<int64_t>(1, context.expected(SymExpr::min(tiles, all_tiles)));
  const bool are_many = nest.tells_few_from_many() || context.expected(all_tiles) >= kSharesOfMany;
  return are_many ? kSharesOfMany : kSharesOfFew;
}

}  // namespace

PanelPrefetch::PanelPrefetch(ContractionNest& nest, const SymExpr& tiles, const SymExpr& all_tiles)
    : nest_(nest), panels_(ceil_div(nest.roles().columns().extent, nest.tiles().columns)),
      tiles_of_panel_(expected_sharers(nest, tiles, all_tiles)) {}

Prefetch PanelPrefetch::choose(int64_t rows, bool are_few) const {
  const schedule::Machine& machine = nest_.context().machine;
  const SymExpr all_rows = nest_.all_rows();
  if (!nest_.roles().is_packed() || nest_.roles().is_computed()) return Prefetch::kNothing;
  if (!all_rows.is_constant() && pack_bytes() * kPartOfSmallPack <= machine.second_level_bytes)
    return Prefetch::kNothing;
  if (!are_few) return nest_.tiles().goes_across ? Prefetch::kNothing : Prefetch::kNextPanel;
  const int64_t bytes = nest_.context().plan.input_bytes;
  if (bytes <= machine.second_level_bytes) return Prefetch::kNothing;
  // Between groups their scales are read, and what is computed with them hides no more loads.
  if (nest_.roles().has_groups()) return Prefetch::kOwnPanel;
  const bool is_side_by_side = nest_.tiles().turns > 1 && all_rows.equals_constant(1);
  if (is_side_by_side || (rows == 1 && bytes > machine.last_level_bytes * kEighthsOfLastLevel / 8))
    return Prefetch::kNothing;
  return Prefetch::kOwnPanel;
}

int64_t PanelPrefetch::pack_bytes() const {
  const graph::TensorType& type = nest_.base_of(nest_.roles().vector(), 0)->type();
  return nest_.context().expected(product(type.shape)) * dtype_size(type.dtype);
}

loop::LinesAhead PanelPrefetch::lines(const TilePlace& place, Prefetch prefetch,
                                      const std::vector<DepthAxis>& depth) {
  if (prefetch == Prefetch::kNothing) return {};
  return prefetch == Prefetch::kOwnPanel ? in_panel(place, depth) : in_next_panel(place, depth);
}

// Where a tile's columns begin at these terms.
SymExpr PanelPrefetch::panel_origin(const TilePlace& place, const SymExpr& panel,
                                    const std::vector<DepthAxis>& depth) const {
  const TileRoles& roles = nest_.roles();
  const size_t vector = roles.vector();
  SymExpr origin = roles.origin(vector, place.first_row, place.first_column, panel);
  for (const DepthAxis& axis : depth) origin = origin + roles.step(vector, *axis.axis) * axis.begin;
  return origin;
}

// Behind the last panel lies nothing; asking for it does no harm.
loop::LinesAhead PanelPrefetch::in_panel(const TilePlace& place,
                                         const std::vector<DepthAxis>& depth) {
  const DType dtype = nest_.base_of(nest_.roles().vector(), place.product)->type().dtype;
  loop::LinesAhead ahead;
  ahead.origin =
      nest_.expr(panel_origin(place, place.panel, depth) + kBytesAheadInPanel / dtype_size(dtype));
  ahead.is_soon = true;
  return ahead;
}

// Each tile asks for its share of the next panel at the same terms, which else only the first one
// would wait for: one of the next product, or of the first one behind the last; in a run of
// panels one of the same product.
loop::LinesAhead PanelPrefetch::in_next_panel(const TilePlace& place,
                                              const std::vector<DepthAxis>& depth) {
  const size_t products = nest_.stages().products().size();
  const bool stays = products == 1 || nest_.tiles().run > 1;
  const bool is_last = stays || place.product + 1 == products;
  if (is_last && panels_.equals_constant(1)) return {};
  loop::LinesAhead ahead;
  ahead.shift = std::bit_width(static_cast<uint64_t>(tiles_of_panel_)) - 1;
  const int64_t shares = int64_t{1} << ahead.shift;
  if (!stays)
    ahead.buffer = nest_.buffer_of(nest_.roles().vector(), is_last ? 0 : place.product + 1);
  SymExpr terms = 1;
  for (const DepthAxis& axis : depth) terms = terms * axis.extent;
  // The last one asks for itself, which does no harm.
  const SymExpr panel = is_last ? SymExpr::min(place.panel + 1, panels_ - 1) : SymExpr(place.panel);
  const SymExpr share = SymExpr::mod(place.number, shares);
  ahead.origin = nest_.expr(panel_origin(place, panel, depth) +
                            share * SymExpr::floordiv(terms * nest_.tiles().columns, shares));
  return ahead;
}

}  // namespace mlcc::lower
