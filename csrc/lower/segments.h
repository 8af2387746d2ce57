// Where along the vector axis of a nest it is decided what a cat, pad or extend reads: between such
// points a loop of its own needs no masks, and its loads are contiguous.
#pragma once

#include <vector>

#include "lower/nest_axes.h"
#include "lower/recording.h"
#include "types/symbolic.h"

namespace mlcc::lower {

// The points, in ascending order, that cut [0, extent of the schedule's vector axis) into segments;
// empty where there is nothing to decide, or too much. Of a nest that reduces, a segment at either
// end is no shorter than a vector, even if it needs masks then.
std::vector<SymExpr> segment_ends(const Recording& recording, const NestAxes& axes,
                                  const schedule::Schedule& schedule);

}  // namespace mlcc::lower
