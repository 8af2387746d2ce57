// Where along an axis of a nest it is decided what a cat, pad or extend reads: between such points
// code of its own needs no masks, and its loads are contiguous.
#pragma once

#include <vector>

#include "lower/axes/nest_axes.h"
#include "lower/axes/recording.h"
#include "schedule/schedule.h"
#include "types/symbolic.h"

namespace mlcc::lower {

// A kept axis, and the points that cut [0, its extent) into segments: in ascending order and
// inside, as far as is known. A segment whose end the sizes put before its begin is empty.
struct Cut {
  size_t axis;  // among those of the nest
  std::vector<SymExpr> ends;
};

// The vector axis, if it is cut, and then others, outermost last: as many as the number of
// combinations of segments allows. Of a nest that reduces, a segment at either end of the vector
// axis is no shorter than a vector, even if it needs masks then.
std::vector<Cut> find_cuts(const Recording& recording, const NestAxes& axes,
                           const schedule::Schedule& schedule);

}  // namespace mlcc::lower
