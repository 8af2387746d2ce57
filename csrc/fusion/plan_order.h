// The order of a plan: what the rules of order.h need to know of each unit, and what they make of
// it.
#pragma once

#include <vector>

#include "fusion/memory.h"
#include "fusion/planning.h"
#include "fusion/units.h"

namespace mlcc::fusion {

// Fills the order of the plan, whose groups are finished.
void order_units(Planning& planning, const std::vector<UnitState>& units, const Writes& writes);

}  // namespace mlcc::fusion
