#include "runtime/kernel.h"

#include <mutex>

namespace mlcc::runtime {
namespace {

CheckFailure run_range(PhaseFunction function, const KernelArgs& args, int64_t begin, int64_t end) {
  CheckFailure failure;
  KernelArgs own = args;
  own.details = failure.details.data();
  failure.code = function(&own, begin, end);
  return failure;
}

}  // namespace

CheckFailure run_phase(PhaseFunction function, const KernelArgs& args, int64_t extent,
                       int64_t grain, const ParallelFor& parallel_for) {
  if (extent <= 0) return {};
  if (extent <= grain || !parallel_for) return run_range(function, args, 0, extent);
  std::mutex mutex;
  int64_t first = extent;
  CheckFailure found;
  parallel_for(extent, grain, [&](int64_t begin, int64_t end) {
    const CheckFailure failure = run_range(function, args, begin, end);
    if (failure.code == 0) return;
    const std::lock_guard lock(mutex);
    if (begin >= first) return;
    first = begin;
    found = failure;
  });
  return found;
}

std::string fill_in(std::string_view text, const CheckDetails& details) {
  std::string filled(text);
  for (size_t i = 0; i < details.size(); ++i) {
    const std::string place = "{" + std::to_string(i) + "}";
    if (const size_t at = filled.find(place); at != std::string::npos)
      filled.replace(at, place.size(), std::to_string(details[i]));
  }
  return filled;
}

}  // namespace mlcc::runtime
