// How much a kernel computes and moves at given sizes: for reports, not for choices.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "loop/ir.h"

namespace mlcc::loop {

struct Work {
  // Ops on floating-point numbers, and products and sums of contractions of any dtype; an
  // elementary function is one. Tiles that reach over an edge count whole, of an if the longer
  // branch. Nothing where data tells how often a loop runs.
  std::optional<double> flops;
  // Of the buffers that the kernel reads and of those that it writes, each whole and once.
  int64_t bytes = 0;
};

// `sizes`: values of `kernel.sizes`.
Work work_of(const Kernel& kernel, std::span<const int64_t> sizes);

}  // namespace mlcc::loop
