#include "runtime/host_kernel.h"

#include <mutex>
#include <utility>

#include "support/error.h"

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

HostKernel::HostKernel(std::string name, std::vector<PhaseFunction> phases,
                       std::shared_ptr<void> code)
    : Kernel(std::move(name)), phases_(std::move(phases)), code_(std::move(code)) {}

CheckFailure HostKernel::run(const KernelArgs& args, std::span<const int64_t> ranges,
                             const LaunchContext& context) const {
  const int64_t* range = ranges.data();
  for (PhaseFunction function : phases_) {
    const int64_t extent = *range++;
    const int64_t grain = *range++;
    const CheckFailure failure = run_phase(function, args, extent, grain, context.parallel_for);
    if (failure.code != 0) return failure;
  }
  return {};
}

const std::vector<PhaseFunction>& host_phases(const Kernel& kernel) {
  const auto* host = dynamic_cast<const HostKernel*>(&kernel);
  MLCC_CHECK(host != nullptr, "kernel ", kernel.name(), ": runs on no host thread");
  return host->phases();
}

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

}  // namespace mlcc::runtime
