// What a schedule is asked for a contraction's tiles: its sizes and how its operands lie.
#pragma once

#include <cstdint>

#include "lower/contractions/contraction_nest.h"

namespace mlcc::lower {

// Whether AMX's registers take the products: words of both operands lie side by side. Rows have
// to be equally far apart, so image rows are joined only where there is no gap.
bool is_in_tile_registers(const Context& context, const ProductStages& stages,
                          const TileRoles& roles);

schedule::ContractionTiles choose_tiles(const ContractionNest& nest);

}  // namespace mlcc::lower
