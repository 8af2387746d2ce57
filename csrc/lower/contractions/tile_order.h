// The order in which an iteration of the parallel loop goes over its tiles: product by product,
// panel by panel or tile by tile, or all of them in turns at a part of the terms.
#pragma once

#include "lower/contractions/contraction_nest.h"
#include "lower/contractions/prefetch.h"

namespace mlcc::lower {

// Tiles [begin, end), counted over the rows of all images, of a panel of columns.
struct TileRange {
  SymExpr begin, end, panel;
  SymExpr tiles_of_image, rows_of_image, tile_rows;
};

// `range.panel` counts iterations' shares of panels (ContractionNest::panels_of_iteration).
void emit_tiles_of(ContractionNest& nest, PanelPrefetch& prefetch, const TileRange& range,
                   loop::Block& block);

}  // namespace mlcc::lower
