#include "runtime/host_kernel.h"

#include <algorithm>
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

// Work of a phase is counted in parts of what is worth a thread.
constexpr int64_t kPartsOfGrain = 64;

// Turns are as many as the iterations of the kernel that has fewest: part of what each kernel walks
// over is then well below what a cache holds. With fewer turns than these there is none to keep,
// and with less work than what is worth so many threads all of it stays in the cache.
constexpr int64_t kFewestTurns = 8, kMostTurns = 256;

// The same phase of the kernels of a wave.
class WavePhase {
 public:
  WavePhase(std::span<const HostLaunch> launches, size_t phase, WaveWay way)
      : launches_(launches), phase_(phase), turns_(way == WaveWay::kTurns ? count_turns() : 0) {}

  bool exists() const {
    return std::any_of(launches_.begin(), launches_.end(),
                       [this](const HostLaunch& launch) { return has_phase(launch); });
  }

  int64_t work() const { return turns_ > 0 ? turns_ : parts(); }

  // Of the work, what is worth a thread.
  int64_t grain() const {
    return turns_ > 0 ? std::max<int64_t>(1, turns_ * kPartsOfGrain / parts()) : kPartsOfGrain;
  }

  // What lies in [begin, end) of the work.
  FailedLaunch run(int64_t begin, int64_t end) const {
    return turns_ > 0 ? run_turns(begin, end) : run_end_to_end(begin, end);
  }

 private:
  bool has_phase(const HostLaunch& launch) const { return phase_ < launch.phases.size(); }
  int64_t extent_of(const HostLaunch& launch) const { return launch.ranges[2 * phase_]; }

  int64_t parts() const {
    int64_t sum = 0;
    for (const HostLaunch& launch : launches_) sum += work_of(launch);
    return sum;
  }

  // 0 where there is nothing to be taken in turns.
  int64_t count_turns() const {
    int64_t turns = kMostTurns;
    for (const HostLaunch& launch : launches_)
      turns = std::min(turns, has_phase(launch) ? extent_of(launch) : 0);
    return turns < kFewestTurns || parts() < kFewestTurns * kPartsOfGrain ? 0 : turns;
  }

  FailedLaunch run_turns(int64_t begin, int64_t end) const {
    for (int64_t turn = begin; turn < end; ++turn)
      for (size_t i = 0; i < launches_.size(); ++i) {
        const HostLaunch& launch = launches_[i];
        const int64_t first = extent_of(launch) * turn / turns_;
        const int64_t last = extent_of(launch) * (turn + 1) / turns_;
        const CheckFailure failure = run_range(launch.phases[phase_], launch.args, first, last);
        if (failure.code != 0) return {i, failure};
      }
    return {};
  }

  FailedLaunch run_end_to_end(int64_t begin, int64_t end) const {
    int64_t start = 0;
    for (size_t i = 0; i < launches_.size(); ++i) {
      const HostLaunch& launch = launches_[i];
      const int64_t work = work_of(launch);
      const int64_t first = iteration(launch, work, begin - start);
      const int64_t last = iteration(launch, work, end - start);
      start += work;
      if (first >= last) continue;
      const CheckFailure failure = run_range(launch.phases[phase_], launch.args, first, last);
      if (failure.code != 0) return {i, failure};
    }
    return {};
  }

  int64_t work_of(const HostLaunch& launch) const {
    if (!has_phase(launch) || extent_of(launch) <= 0) return 0;
    const int64_t grain = std::max<int64_t>(1, launch.ranges[2 * phase_ + 1]);
    const double parts = static_cast<double>(extent_of(launch)) / static_cast<double>(grain);
    return std::max<int64_t>(1, static_cast<int64_t>(parts * kPartsOfGrain));
  }

  // The first iteration of a launch that lies behind so much of its work. Grows with `done`, so
  // that neighbouring ranges share no iteration and leave none out.
  int64_t iteration(const HostLaunch& launch, int64_t work, int64_t done) const {
    if (done <= 0) return 0;
    if (done >= work) return work == 0 ? 0 : extent_of(launch);
    return static_cast<int64_t>(static_cast<double>(extent_of(launch)) *
                                (static_cast<double>(done) / static_cast<double>(work)));
  }

  const std::span<const HostLaunch> launches_;
  const size_t phase_;
  const int64_t turns_;
};

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

FailedLaunch run_wave(std::span<const HostLaunch> launches, const ParallelFor& parallel_for,
                      WaveWay way) {
  FailedLaunch found;
  for (size_t phase = 0; WavePhase(launches, phase, way).exists(); ++phase) {
    const WavePhase of_all(launches, phase, way);
    std::mutex mutex;
    int64_t first = of_all.work();
    const auto body = [&](int64_t begin, int64_t end) {
      const FailedLaunch failed = of_all.run(begin, end);
      if (failed.failure.code == 0) return;
      const std::lock_guard lock(mutex);
      if (begin >= first) return;
      first = begin;
      found = failed;
    };
    if (parallel_for)
      parallel_for(of_all.work(), of_all.grain(), body);
    else
      body(0, of_all.work());
    if (first < of_all.work()) launches = launches.first(found.launch);
  }
  return found;
}

}  // namespace mlcc::runtime
