#include "runtime/trial.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include "runtime/arena_pool.h"
#include "runtime/plan_memory.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

using Clock = std::chrono::steady_clock;
using ValueOf = std::function<int64_t(std::string_view)>;

// How two contenders are timed.
constexpr size_t kPairs = 7;                // of samples, one of each contender
constexpr double kShortestSample = 200e-6;  // seconds; shorter runs are repeated
constexpr double kMostRepeats = 1000;       // of a run in a sample
constexpr double kShortestRun = 1e-9;       // seconds, of a clock that has not moved
// Of one run, to see how long it takes: as long as they stay beyond the limit, no more than these.
constexpr int kMostFirstRuns = 4;
constexpr double kFarAhead = 4;         // times as fast: a few runs tell
constexpr double kInterruption = 0.01;  // seconds; longer beyond the limit: not tried again

std::set<Hash128> keys_of(const ExecutablePlan& plan) {
  std::set<Hash128> keys;
  for (const Step& step : plan.steps)
    if (const auto* launch = std::get_if<LaunchStep>(&step)) keys.insert(launch->key);
  return keys;
}

// What each slot holds.
std::map<Slot, TensorSpec> specs_of(const ExecutablePlan& plan) {
  std::map<Slot, TensorSpec> specs;
  for (size_t i = 0; i < plan.inputs.size(); ++i)
    if (!plan.inputs[i].is_size) specs[static_cast<Slot>(i)] = plan.inputs[i].spec;
  for (const Step& step : plan.steps) {
    if (const auto* allocate = std::get_if<AllocateStep>(&step)) {
      specs[allocate->slot] = allocate->spec;
    } else if (const auto* view = std::get_if<ViewStep>(&step)) {
      specs[view->slot] = view->spec;
    } else if (const auto* call = std::get_if<ExternStep>(&step)) {
      for (size_t i = 0; i < call->results.size(); ++i)
        if (call->results[i] >= 0 && call->expected[i])
          specs[call->results[i]] = *call->expected[i];
    }
  }
  return specs;
}

int64_t bytes_of(const TensorSpec& spec, const ValueOf& value_of) {
  std::vector<int64_t> shape, strides;
  for (const SymExpr& size : spec.shape) shape.push_back(size.evaluate(value_of));
  for (const SymExpr& stride : spec.strides) strides.push_back(stride.evaluate(value_of));
  if (shape.size() != strides.size()) throw Error("a tensor's strides are not known");
  return storage_bytes(shape, strides, dtype_size(spec.dtype));
}

// `count` numbers in [0.5, 1), again and again: the bits of 0.5 and multiples of `step`.
template <typename Bits>
void fill(char* data, int64_t bytes, Bits half, Bits step, uint64_t count) {
  auto* numbers = reinterpret_cast<Bits*>(data);
  const int64_t size = bytes / static_cast<int64_t>(sizeof(Bits));
  for (int64_t i = 0; i < size; ++i)
    numbers[i] = static_cast<Bits>(half + step * (static_cast<uint64_t>(i) % count));
}

// A contender as far as it differs from the other one: kernels that are in `shared` are left out,
// as is all that is no kernel. What these would have computed lies in the host's memory, like
// inputs and outputs.
Contender differing_part(const Contender& whole, const std::set<Hash128>& shared) {
  std::map<Slot, size_t> maker;  // of what lies in an arena: the first launch that touches it
  const auto& steps = whole.plan.steps;
  for (size_t i = 0; i < steps.size(); ++i)
    if (const auto* launch = std::get_if<LaunchStep>(&steps[i]))
      for (const Slot slot : launch->buffers) maker.try_emplace(slot, i);
  const auto is_left_out = [&](const Step& step) {
    return shared.count(std::get<LaunchStep>(step).key) != 0;
  };
  Contender part;
  part.plan = whole.plan;
  part.plan.steps.clear();
  part.plan.outputs.clear();
  part.plan.written_inputs.clear();
  size_t kernel = 0;
  for (const Step& step : steps) {
    if (std::holds_alternative<LaunchStep>(step)) {
      const KernelPtr& code = whole.kernels[kernel++];
      if (is_left_out(step)) continue;
      const bool is_first =
          part.plan.steps.empty() || !std::holds_alternative<LaunchStep>(part.plan.steps.back());
      part.plan.steps.push_back(step);
      std::get<LaunchStep>(part.plan.steps.back()).beside &= !is_first;
      part.kernels.push_back(code);
    } else if (const auto* allocate = std::get_if<AllocateStep>(&step)) {
      const auto made = maker.find(allocate->slot);
      if (allocate->arena && made != maker.end() && !is_left_out(steps[made->second]))
        part.plan.steps.push_back(step);
    } else if (std::holds_alternative<BindStep>(step)) {
      part.plan.steps.push_back(step);
    }
  }
  return part;
}

// The tensors of a trial: memory for all that lies in no arena.
class TrialHost final : public Host {
 public:
  // `specs`: of the slots that launches touch.
  TrialHost(const ExecutablePlan& plan, const std::map<Slot, TensorSpec>& specs,
            const ValueOf& value_of)
      : specs_(specs), value_of_(value_of) {
    std::set<Slot> in_arena;
    for (const Step& step : plan.steps) {
      if (const auto* allocate = std::get_if<AllocateStep>(&step)) in_arena.insert(allocate->slot);
      if (const auto* bind = std::get_if<BindStep>(&step))
        if (bind->dim < 0) sizes_[bind->slot] = value_of_(bind->symbol);
      if (const auto* launch = std::get_if<LaunchStep>(&step))
        for (const Slot slot : launch->buffers)
          if (in_arena.count(slot) == 0)
            tensors_[slot].bytes = bytes_of(specs_.at(slot), value_of_);
    }
  }

  int64_t bytes() const {
    int64_t sum = 0;
    for (const auto& [slot, tensor] : tensors_) sum += tensor.bytes;
    return sum;
  }

  void take_memory() {
    for (auto& [slot, tensor] : tensors_) {
      tensor.memory = ArenaPool::process().lease(tensor.bytes);
      make_up(tensor.memory.data(), tensor.bytes, specs_.at(slot).dtype);
    }
  }

  void* data(Slot slot) override { return tensors_.at(slot).memory.data(); }
  int64_t tensor_size(Slot slot, int dim) override {
    return specs_.at(slot).shape.at(static_cast<size_t>(dim)).evaluate(value_of_);
  }
  int64_t size(Slot slot) override { return sizes_.at(slot); }
  void raise(const KernelError& error, const std::string&) override { throw Error(error.text); }

  char* take_arena(int64_t bytes) override { return arenas_.take(bytes); }
  void give_back_arena(char* data) override { arenas_.give_back(data); }

  // What no step of a trial asks for.
  void set_size(Slot, int64_t) override { refuse(); }
  void allocate(Slot, DType, std::span<const int64_t>, std::span<const int64_t>, Device) override {
    refuse();
  }
  void* workspace(int64_t) override { refuse(); }
  void make_view(Slot, Slot, std::span<const int64_t>, std::span<const int64_t>, int64_t) override {
    refuse();
  }
  void call_extern(const ExternStep&, size_t,
                   const std::function<int64_t(const SymExpr&)>&) override {
    refuse();
  }
  void release(Slot) override { refuse(); }

 private:
  struct Tensor {
    int64_t bytes = 0;
    ArenaLease memory;
  };

  [[noreturn]] static void refuse() { MLCC_UNREACHABLE("a trial launches kernels only"); }

  const std::map<Slot, TensorSpec>& specs_;
  const ValueOf& value_of_;
  std::map<Slot, int64_t> sizes_;
  PooledArenas arenas_;
  std::map<Slot, Tensor> tensors_;
};

// A contender that is ready to run.
class Runner {
 public:
  Runner(const Contender& whole, const std::set<Hash128>& shared, const ValueOf& value_of)
      : specs_(specs_of(whole.plan)), part_(differing_part(whole, shared)),
        host_(part_.plan, specs_, value_of), executable_(part_.plan, part_.kernels) {}

  TrialHost& host() { return host_; }

  void run(const ParallelFor& parallel_for) { executable_.run(host_, parallel_for); }

 private:
  const std::map<Slot, TensorSpec> specs_;
  const Contender part_;
  TrialHost host_;
  const Executable executable_;
};

template <size_t N>
double quantile(std::array<double, N> values, size_t quarters) {
  std::sort(values.begin(), values.end());
  return values[(N - 1) * quarters / 4];
}

// Seconds of one run in the mean of `times`.
double seconds_of(const std::function<void()>& run, int64_t times) {
  const Clock::time_point start = Clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  return std::chrono::duration<double>(Clock::now() - start).count() / static_cast<double>(times);
}

}  // namespace

void make_up(void* memory, int64_t bytes, DType dtype) {
  auto* data = static_cast<char*>(memory);
  if (dtype == DType::kF32) return fill<uint32_t>(data, bytes, 0x3f000000, 1U << 13, 1024);
  if (dtype == DType::kF64)
    return fill<uint64_t>(data, bytes, 0x3fe0000000000000, 1ULL << 42, 1024);
  if (dtype == DType::kF16) return fill<uint16_t>(data, bytes, 0x3800, 1, 1024);
  if (dtype == DType::kBF16) return fill<uint16_t>(data, bytes, 0x3f00, 1, 128);
  std::fill_n(data, bytes, '\0');
}

Result<TrialResult> time_in_turns(const std::function<void()>& first,
                                  const std::function<void()>& second, double most_seconds) {
  const std::array<const std::function<void()>*, 2> runners = {&first, &second};
  std::array<double, 2> of_one{};
  for (size_t i = 0; i < 2; ++i) {
    // The first run finds nothing in caches, and others may be interrupted.
    double& least = of_one[i];
    least = seconds_of(*runners[i], 1);
    const auto goes_on = [&](int runs) {
      return runs == 1 || (runs < kMostFirstRuns && least > most_seconds);
    };
    for (int runs = 1; goes_on(runs) && least <= most_seconds + kInterruption; ++runs)
      least = std::min(least, seconds_of(*runners[i], 1));
  }
  const double longest = std::max(of_one[0], of_one[1]);
  if (longest > most_seconds) {
    if (longest < kFarAhead * std::min(of_one[0], of_one[1]))
      return unsupported("it takes too long");
    const double ratio = of_one[0] / std::max(of_one[1], kShortestRun);
    return TrialResult{of_one[0], of_one[1], ratio, ratio, ratio};
  }
  const auto times = static_cast<int64_t>(
      std::clamp(kShortestSample / std::max(longest, kShortestRun), 1.0, kMostRepeats));
  std::array<std::array<double, kPairs>, 2> seconds{};
  std::array<double, kPairs> ratios{};
  for (size_t pair = 0; pair < kPairs; ++pair) {
    for (size_t i = 0; i < 2; ++i) {
      const size_t turn = (pair + i) % 2;
      seconds[turn][pair] = seconds_of(*runners[turn], times);
    }
    ratios[pair] = seconds[0][pair] / seconds[1][pair];
  }
  return TrialResult{quantile(seconds[0], 2), quantile(seconds[1], 2), quantile(ratios, 2),
                     quantile(ratios, 1), quantile(ratios, 3)};
}

Result<TrialResult> try_both(const Contender& first, const Contender& second,
                             const std::function<int64_t(std::string_view)>& value_of,
                             const ParallelFor& parallel_for, const TrialLimits& limits) {
  MLCC_CHECK(first.plan.device.kind == DeviceKind::kCpu &&
                 second.plan.device.kind == DeviceKind::kCpu,
             "trial: of kernels on another device than the CPU");
  const std::set<Hash128> keys = keys_of(first.plan), others = keys_of(second.plan);
  if (keys == others) return unsupported("the kernels are the same");
  std::set<Hash128> shared;
  std::set_intersection(keys.begin(), keys.end(), others.begin(), others.end(),
                        std::inserter(shared, shared.end()));
  try {
    Runner a(first, shared, value_of), b(second, shared, value_of);
    const int64_t bytes = std::max(a.host().bytes(), b.host().bytes());
    if (bytes > limits.bytes) return unsupported("it takes ", bytes, " bytes");
    a.host().take_memory();
    b.host().take_memory();
    return time_in_turns([&] { a.run(parallel_for); }, [&] { b.run(parallel_for); },
                         limits.seconds);
  } catch (const Error& error) {  // of a check, or of a size that has no value
    return unsupported(error.what());
  }
}

}  // namespace mlcc::runtime
