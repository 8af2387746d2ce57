// Contractions without tiles: each sum by itself, a loop over its terms for each element.
#pragma once

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

void emit_points(ContractionNest& nest);

}  // namespace mlcc::lower
