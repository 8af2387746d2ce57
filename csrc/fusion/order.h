// In which order the kernels and calls of a plan run, and which kernels run at the same time.
//
// Units come in the order of their last nodes, so that a value is computed shortly before its
// readers. Kernels too small to keep the machine busy are drawn forward to run beside an earlier
// one that they do not depend on: a wave. What a wave takes is bounded, and with it how much
// longer its results stay in memory.
#pragma once

#include <cstdint>
#include <set>
#include <vector>

namespace mlcc::fusion {

// A kernel or a call, by its index.
struct OrderedUnit {
  std::set<int> reads;  // units that come before it
  int last = 0;         // program order of its last node
  // Elements computed by a kernel that may run beside others; 0: this one runs alone.
  int64_t work = 0;
};

struct WaveLimits {
  int64_t of_kernel = 0;  // work above which a kernel runs alone
  int64_t of_wave = 0;    // work of all its kernels
};

// The units in order, those of a wave together. Fewer than `units` where they wait for each other.
std::vector<std::vector<int>> find_waves(const std::vector<OrderedUnit>& units,
                                         const WaveLimits& limits);

}  // namespace mlcc::fusion
