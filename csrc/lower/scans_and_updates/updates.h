// Lowering a scatter or index_put: a first phase writes the base into the result, a second one the
// updates.
//
// The second phase keeps the order of updates that may meet in one element where the order can be
// told from the result: on CPUs, where the node asks for it, and where there is no atomic form.
// Then it is parallel over the axes that are not indexed and goes through the indexed ones in
// order. Else all axes are parallel, and updates are atomic.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

void lower_update(const Context& context, const graph::Node& node, KernelBuffers& buffers,
                  LoweredKernel& lowered);

}  // namespace mlcc::lower
