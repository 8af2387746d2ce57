// The ABI of kernels that run on the host's threads, and the object that keeps one callable.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/kernel.h"

namespace mlcc::runtime {

// Runs iterations [begin, end) of a phase; 0, or the code of the check that failed.
using PhaseFunction = int64_t (*)(const KernelArgs* args, int64_t begin, int64_t end);

class HostKernel final : public Kernel {
 public:
  // `code` unloads the object when the last holder goes.
  HostKernel(std::string name, std::vector<PhaseFunction> phases,
             std::shared_ptr<void> code = nullptr);

  int num_phases() const override { return static_cast<int>(phases_.size()); }
  CheckFailure run(const KernelArgs& args, std::span<const int64_t> ranges,
                   const LaunchContext& context) const override;
  const std::vector<PhaseFunction>& phases() const { return phases_; }

 private:
  const std::vector<PhaseFunction> phases_;
  const std::shared_ptr<void> code_;
};

// The phases of a kernel that is known to be a HostKernel; InternalError otherwise.
const std::vector<PhaseFunction>& host_phases(const Kernel& kernel);

// Runs one phase over [0, extent); of several failures, tells the one of the first range.
CheckFailure run_phase(PhaseFunction function, const KernelArgs& args, int64_t extent,
                       int64_t grain, const ParallelFor& parallel_for);

// One of several kernels that run at the same time.
struct HostLaunch {
  const std::vector<PhaseFunction>& phases;
  KernelArgs args;
  std::span<const int64_t> ranges;  // extent and grain of each phase
};

struct FailedLaunch {
  size_t launch = 0;
  CheckFailure failure;
};

// How the work of a wave is laid out: one kernel's behind the other's, or a part of each, then the
// next part of each, for kernels that find in a cache what another one has just read.
enum class WaveWay : uint8_t { kEndToEnd, kTurns };

// Runs kernels that do not touch what another one of them writes: the first phases of all in one
// parallel region, then the second ones. End to end, each thread gets as much of them as it would
// of one kernel, by their grains, and of several failures it tells the one that launches in turn
// would have met.
FailedLaunch run_wave(std::span<const HostLaunch> launches, const ParallelFor& parallel_for,
                      WaveWay way = WaveWay::kEndToEnd);

}  // namespace mlcc::runtime
