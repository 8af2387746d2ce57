// The epilogue of a tile: what the group computes from the sums, row by row, and stores.
#pragma once

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

// What these stages compute from the tile's sums; nothing where they have no outputs.
void emit_epilogue(ContractionNest& nest, const TilePlace& place, const Stages& stages,
                   loop::Block& block);

}  // namespace mlcc::lower
