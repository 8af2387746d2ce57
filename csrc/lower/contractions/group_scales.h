// Sums of groups of terms that have scales of their own (contract_groups).
#pragma once

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

// Adds to a tile's sums what the terms of a group have come to, scaled. The axis of the groups is
// bound.
void add_scaled(ContractionNest& nest, const TilePlace& place, const Sums& terms,
                loop::Block& block);

// The same of one element: to `sum`. All axes are bound.
loop::Expr plus_scaled(ContractionNest& nest, const graph::Node& product, loop::Expr terms,
                       loop::Expr sum, loop::Block& block);

}  // namespace mlcc::lower
