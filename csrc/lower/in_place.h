// Whether a kernel may write results into the memory that it reads: see fusion/in_place.h.
#pragma once

#include "fusion/fusion.h"
#include "lower/lower.h"

namespace mlcc::lower {

// For `group.in_place`, with which the kernel was lowered. Each load of such a buffer must be
// followed, in its block, by a store to the same element: as each element is stored by one
// iteration only (of an update: read by those that store it), what is loaded is then the input's
// element, or the update's own. An update whose base is stored there first reads nothing else from
// it. A kernel that can fail writes its results nowhere but in memory of
// its own, unless it is an update: eager's stop halfway too.
bool is_safe_in_place(const fusion::Group& group, const LoweredKernel& lowered);

}  // namespace mlcc::lower
