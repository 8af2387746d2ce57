// Lowering a scan: parallel over the kept axes, in order along the scanned one, in vectors along a
// kept axis where that is contiguous.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

void lower_scan(const Context& context, const graph::Node& node, KernelBuffers& buffers,
                LoweredKernel& lowered);

}  // namespace mlcc::lower
