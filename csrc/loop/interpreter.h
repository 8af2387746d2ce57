// The reference interpreter: defines what a kernel computes. Slow, checked (bounds, uninitialized
// reads of local, scratch and out buffers, integer division).
#pragma once

#include <span>

#include "loop/ir.h"

namespace mlcc::loop {

struct InterpreterOptions {
  // Lanes and partial accumulators that `reduce` loops with a combine are split into: 1 is the
  // plain order. A seed other than 0 permutes the order of parallel and vector iterations and of
  // combines, so that a wrong claim of independence shows.
  int64_t partials = 1;
  uint64_t seed = 0;
  // Elementary functions are off by one epsilon, up or down by the seed, as those of a kernel may
  // be.
  bool has_inexact_functions = false;
};

// buffers[i] points to the first element of kernel.buffers[i]; sizes in the kernel's order.
// Returns 0, or the code of the check that failed, whose details it writes. Throws Error on an
// access out of bounds or another broken rule.
int64_t interpret(const Kernel& kernel, std::span<const int64_t> sizes,
                  std::span<void* const> buffers, const InterpreterOptions& options = {},
                  CheckDetails* details = nullptr);

}  // namespace mlcc::loop
