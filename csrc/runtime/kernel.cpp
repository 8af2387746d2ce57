#include "runtime/kernel.h"

#include <atomic>

namespace mlcc::runtime {

int64_t run_phase(PhaseFunction function, const KernelArgs& args, int64_t extent, int64_t grain,
                  const ParallelFor& parallel_for) {
  if (extent <= 0) return 0;
  if (extent <= grain || !parallel_for) return function(&args, 0, extent);
  // The smallest code found: the same for every way of splitting the range.
  std::atomic<int64_t> first_code{0};
  parallel_for(extent, grain, [&](int64_t begin, int64_t end) {
    const int64_t code = function(&args, begin, end);
    int64_t known = first_code.load(std::memory_order_relaxed);
    while (code != 0 && (known == 0 || code < known)) {
      if (first_code.compare_exchange_weak(known, code, std::memory_order_relaxed)) break;
    }
  });
  return first_code.load(std::memory_order_relaxed);
}

}  // namespace mlcc::runtime
