#include "lower/contractions/tile_order.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <utility>
#include <vector>

#include "lower/contractions/computed_panels.h"
#include "lower/contractions/depth_parts.h"
#include "lower/contractions/epilogue.h"
#include "lower/contractions/joined_rows.h"
#include "lower/contractions/micro_kernel.h"
#include "support/error.h"

namespace mlcc::lower {

using loop::Block;

namespace {

class TileOrder {
 public:
  TileOrder(ContractionNest& nest, PanelPrefetch& prefetch)
      : nest_(nest), tiles_(nest.tiles()), kernel_(nest, prefetch) {}

  // All tiles of one product, then those of the next one: a panel of columns at a time, or a run of
  // them, goes through the caches. Sums that a later product's epilogue is computed with wait for
  // these.
  void emit_products(const TileRange& range, Block& block) {
    const std::vector<size_t>& kept_products = nest_.stages().kept();
    const int64_t of_panel = most_rows(range) * nest_.wide_columns();
    const int64_t of_product = tiles_.run * of_panel;
    const loop::Buffer* kept = nullptr;
    if (!kept_products.empty())
      kept = nest_.stack("sums", nest_.accumulator(),
                         static_cast<int64_t>(kept_products.size()) * of_product, block);
    const Panels panels = panels_of(range, block);
    for (size_t product = 0; product < num_products(); ++product) {
      const auto sums_at = [&](const SymExpr& at, Block& b) {
        std::vector<Sums> sums(num_products());
        for (size_t i = 0; i < kept_products.size(); ++i)
          sums[kept_products[i]] = {kept, at + static_cast<int64_t>(i) * of_product};
        if (sums[product].buffer == nullptr)
          sums[product].buffer = nest_.stack("tile", nest_.accumulator(),
                                             tiles_.rows.front() * nest_.wide_columns(), b);
        return sums;
      };
      const auto of_tile = [&](const TilePlace& place, Block& b) {
        kernel_.emit_sums(place, b);
        kernel_.emit_terms_left(place, b);
        emit_epilogue(nest_, place, {product, product}, b);
      };
      const OfPanel body = [&](const TileRange& of_one, const SymExpr& number, Block& b) {
        append(b, over_tiles(of_one, product, of_tile, [&](const SymExpr& tile, Block& inner) {
                 if (kept == nullptr) return sums_at(0, inner);
                 const SymExpr at =
                     number * of_panel + tile * range.tile_rows * nest_.wide_columns();
                 return sums_at(nest_.let(at, "sum", inner), inner);
               }));
      };
      append(block, tiles_.goes_across ? across_panels(range, panels, body)
                                       : over_panels(range, panels, body));
    }
  }

  // Panels, and tiles of each, take turns at a part of the terms, whose columns and rows stay in
  // caches meanwhile.
  void emit_turns(const TileRange& range, Block& block) {
    MLCC_CHECK(tiles_.panels == 1, "lowering: panels side by side take no turns");
    const Panels all = panels_of(range, block);
    if (!nest_.tells_few_from_many() || tiles_.turns == 1) return emit_turns(range, all, block);
    // Few rows are through with a panel soon: each goes over all of its terms, as they lie.
    const SymExpr count = nest_.select(nest_.are_few_rows(), 1, tiles_.turns, "turns", block);
    append(block, nest_.loop_over("turn", 0, ceil_div(all.end - all.first, count), {},
                                  [&](const SymExpr& turn, Block& b) {
                                    const SymExpr first =
                                        nest_.let(all.first + turn * count, "first", b);
                                    const SymExpr end =
                                        nest_.let(SymExpr::min(first + count, all.end), "end", b);
                                    emit_turns(range, {first, end}, b);
                                  }));
  }

 private:
  // The panels of an iteration, each with its number among these.
  struct Panels {
    SymExpr first, end;
  };
  using OfPanel = std::function<void(const TileRange&, const SymExpr& number, Block&)>;
  using OfTile = std::function<void(const TilePlace&, Block&)>;
  // The sums of a tile that is so many tiles behind the first one.
  using SumsOfTile = std::function<std::vector<Sums>(const SymExpr& tile, Block&)>;

  size_t num_products() const { return nest_.stages().products().size(); }

  // That tiles of the range compute, at most.
  int64_t most_rows(const TileRange& range) const {
    const int64_t tile_rows = tiles_.rows.front();
    const int64_t most = tiles_.most_rows();
    const auto rows = range.rows_of_image.as_constant();
    if (!rows) return most;
    return std::min(most, std::max<int64_t>(1, (*rows + tile_rows - 1) / tile_rows) * tile_rows);
  }

  Panels panels_of(const TileRange& range, Block& block) {
    const int64_t most = nest_.panels_of_iteration();
    if (most == 1) return {range.panel, range.panel + 1};
    const SymExpr all = ceil_div(nest_.roles().columns().extent, nest_.wide_columns());
    const SymExpr first = nest_.let(range.panel * most, "first", block);
    return {first, nest_.let(SymExpr::min(first + most, all), "end", block)};
  }

  Block over_panels(const TileRange& range, const Panels& panels, const OfPanel& body) {
    return nest_.loop_over("panel", panels.first, panels.end, {},
                           [&](const SymExpr& panel, Block& b) {
                             TileRange of_one = range;
                             of_one.panel = panel;
                             body(of_one, panel - panels.first, b);
                           });
  }

  // Each tile goes over all panels, before the next one does.
  Block across_panels(const TileRange& range, const Panels& panels, const OfPanel& body) {
    return nest_.loop_over("tile", range.begin, range.end, {}, [&](const SymExpr& tile, Block& b) {
      TileRange of_one = range;
      of_one.begin = tile;
      of_one.end = tile + 1;
      append(b, over_panels(of_one, panels, body));
    });
  }

  // One tile after the other.
  Block over_tiles(const TileRange& range, size_t product, const OfTile& body,
                   const SumsOfTile& sums_of_tile) {
    const TileRoles& roles = nest_.roles();
    return nest_.loop_over(
        "tile", range.begin, range.end, {}, [&](const SymExpr& tile, Block& block) {
          SymExpr part = tile;
          if (const auto shared = roles.shared_outer(); !shared.empty()) {
            nest_.bind_axes(
                shared, nest_.let(SymExpr::floordiv(tile, range.tiles_of_image), "image", block),
                block);
            part = nest_.let(SymExpr::mod(tile, range.tiles_of_image), "part", block);
          }
          const SymExpr last_row = range.rows_of_image - range.tile_rows;
          const SymExpr first_row =
              nest_.let(SymExpr::min(part * range.tile_rows, last_row), "row", block);
          const int64_t columns = nest_.wide_columns();
          const SymExpr first_column = nest_.let(range.panel * columns, "column", block);
          const SymExpr& all = roles.columns().extent;
          const bool is_whole = all.as_constant().value_or(1) % columns == 0;
          const SymExpr live =
              is_whole ? SymExpr(columns)
                       : nest_.let(SymExpr::min(all - first_column, columns), "live", block);
          std::vector<Sums> sums = sums_of_tile(tile - range.begin, block);
          body({std::move(sums), product, first_row, first_column, range.panel, range.tile_rows,
                live, join_rows(nest_, first_row, range.tile_rows, block), tile},
               block);
        });
  }

  void emit_turns(const TileRange& range, const Panels& panels, Block& block) {
    const auto products = static_cast<int64_t>(num_products());
    const int64_t of_product = tiles_.most_rows() * tiles_.columns;
    const int64_t of_panel = products * of_product;
    const bool has_parts_apart = has_sums_of_parts(nest_);
    const auto stack = [&](std::string_view name) {
      return nest_.stack(name, nest_.accumulator(), tiles_.turns * of_panel, block);
    };
    const loop::Buffer* sums = stack("sums");
    const loop::Buffer* parts = has_parts_apart ? stack("parts") : sums;
    const auto tiles_of = [&](const TileRange& of_one, const SymExpr& number, size_t product,
                              const OfTile& body) {
      return over_tiles(of_one, product, body, [&](const SymExpr& tile, Block& b) {
        const SymExpr at =
            nest_.let(number * of_panel + tile * range.tile_rows * nest_.wide_columns(), "sum", b);
        std::vector<Sums> all;
        for (int64_t i = 0; i < products; ++i) all.push_back({sums, at + i * of_product});
        return all;
      });
    };
    const auto parts_of = [&](TilePlace place) {
      for (Sums& of_one : place.sums) of_one.buffer = parts;
      return place;
    };
    // Before the tiles of a panel of a product.
    using OfProduct = std::function<void(const TileRange&, size_t product, Block&)>;
    const auto each = [&](const OfTile& body, const OfProduct& before = {}) {
      return over_panels(range, panels,
                         [&](const TileRange& of_one, const SymExpr& number, Block& b) {
                           for (size_t product = 0; product < num_products(); ++product) {
                             if (before) before(of_one, product, b);
                             append(b, tiles_of(of_one, number, product, body));
                           }
                         });
    };
    append(block, each([&](const TilePlace& place, Block& b) {
             append(b, kernel_.zeros(place));
             if (has_parts_apart) append(b, kernel_.zeros(parts_of(place)));
           }));
    append(
        block,
        over_parts(
            nest_,
            [&](const std::vector<DepthAxis>& depth) {
              const loop::Buffer* computed = nullptr;
              const auto add = [&](const TilePlace& place, Block& b) {
                TilePlace part = parts_of(place);
                part.computed = computed;
                append(b, kernel_.contractions(part, depth, true));
              };
              const TileRoles& roles = nest_.roles();
              if (!roles.is_computed()) return each(add);
              if (multiplies_few_rows(nest_))
                return each([&](const TilePlace& place, Block& b) {
                  add_products_of_rows(nest_, parts_of(place), depth, b);
                });
              const Block converted =
                  roles.may_convert() && nest_.tells_few_from_many() ? each(add) : Block();
              const Block whole = each(add, [&](const TileRange& of_one, size_t product, Block& b) {
                computed = compute_panel(nest_, product, of_one.panel, depth, b);
              });
              if (converted.empty()) return whole;
              return Block{loop::If::make(nest_.arena(), nest_.are_few_rows(), converted, whole)};
            },
            [&] {
              return each([&](const TilePlace& place, Block& b) {
                append(b, kernel_.add_parts(place, parts_of(place)));
              });
            }));
    append(
        block,
        over_panels(range, panels, [&](const TileRange& of_one, const SymExpr& number, Block& b) {
          append(b, tiles_of(of_one, number, 0, [&](const TilePlace& place, Block& of_tile) {
                   finish_tile(place, of_tile);
                 }));
        }));
  }

  // What is left of a tile whose sums took turns.
  void finish_tile(TilePlace place, Block& block) {
    const size_t first = place.product;
    for (place.product = 0; place.product < num_products(); ++place.product)
      kernel_.emit_terms_left(place, block);
    place.product = first;
    emit_epilogue(nest_, place, nest_.stages().all(), block);
  }

  ContractionNest& nest_;
  const schedule::ContractionTiles& tiles_;
  MicroKernel kernel_;
};

}  // namespace

void emit_tiles_of(ContractionNest& nest, PanelPrefetch& prefetch, const TileRange& range,
                   Block& block) {
  TileOrder order(nest, prefetch);
  if (nest.tiles().turns > 1 || nest.roles().is_computed())
    order.emit_turns(range, block);
  else
    order.emit_products(range, block);
}

}  // namespace mlcc::lower
