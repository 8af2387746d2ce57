// Borders of padded values whose inner part a kernel writes where it stands: a phase of its own
// writes what lies around it.
#pragma once

#include "lower/context.h"
#include "lower/contractions/tile_nest.h"
#include "lower/element/evaluator.h"

namespace mlcc::lower {

// Adds a phase for each such value of the group.
void fill_borders(const Context& context, Evaluator& evaluator, TileNest& nest);

}  // namespace mlcc::lower
