// What graph passes are told of the tiles that contractions are lowered to.
#pragma once

#include <functional>

#include "graph/passes/options.h"
#include "schedule/machine.h"

namespace mlcc::lower {

// No columns on GPUs. The machine is asked for as late as a pass asks for its tiles.
graph::TileOptions tile_options(std::function<schedule::Machine()> machine);

}  // namespace mlcc::lower
