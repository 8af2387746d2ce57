#include "runtime/executable.h"

#include <algorithm>
#include <array>
#include <utility>

#include "runtime/call_plan.h"
#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

// Scratch of a call: on the stack up to N elements, on the heap beyond.
template <typename T, size_t N>
class Scratch {
 public:
  explicit Scratch(size_t size) : size_(size) {
    if (size > N) heap_.resize(size);
  }
  T* data() { return heap_.empty() ? inline_.data() : heap_.data(); }
  T& operator[](size_t i) { return data()[i]; }
  T& operator[](int32_t i) { return data()[static_cast<size_t>(i)]; }
  std::span<const T> span() { return {data(), size_}; }

 private:
  size_t size_;
  std::array<T, N> inline_;
  std::vector<T> heap_;
};

// One call: its symbols, its arena, and how each kind of step is done.
class Call {
 public:
  Call(const ExecutablePlan& plan, const CallPlan& call_plan, const std::vector<KernelPtr>& kernels,
       const std::vector<int32_t>& waves, const Polled& polled, Host& host,
       const ParallelFor& parallel_for)
      : plan_(plan), call_plan_(call_plan), kernels_(kernels), waves_(waves), polled_(polled),
        host_(host), parallel_for_(parallel_for), stream_(host.stream()),
        symbols_(call_plan.symbols().size()),
        arena_(static_cast<size_t>(call_plan.num_arena_slots())), buffers_(call_plan.max_buffers()),
        evaluate_([this](const SymExpr& expr) { return value_of(expr); }) {}

  // Returns the bytes of all arenas.
  int64_t run() {
    poll();
    for (size_t i = 0; i < call_plan_.segments().size(); ++i) {
      const Segment& segment = *call_plan_.segments()[i];
      for (int32_t step = segment.begin; step < segment.first_work; ++step) run_step(step);
      begin_segment(segment);
      for (int32_t step = segment.first_work; step < segment.end; ++step) {
        const int32_t launches = waves_[static_cast<size_t>(step)];
        if (launches > 1) {
          run_wave_at(step, launches);
          step += launches - 1;
        } else {
          run_step(step);
        }
      }
      end_segment(static_cast<int32_t>(i));
    }
    return arena_bytes_;
  }

 private:
  void begin_segment(const Segment& segment) {
    if (segment.exprs.empty()) return;
    sizes_ = segment.sizes(symbols_.span());
    values_ = sizes_->values.data();
    arena_bytes_ += sizes_->arena_bytes;
    if (segment.arena.empty()) return;
    char* base = arena_of(segment);
    for (size_t i = 0; i < segment.arena.size(); ++i)
      arena_[segment.arena[i].index] = base == nullptr ? nullptr : base + sizes_->offsets[i];
  }

  char* arena_of(const Segment& segment) {
    if (plan_.device.kind != DeviceKind::kCpu)
      return sizes_->arena_bytes == 0 ? nullptr
                                      : static_cast<char*>(host_.workspace(sizes_->arena_bytes));
    leases_.push_back({host_.take_arena(sizes_->arena_bytes), segment.lease_until});
    return leases_.back().data;
  }

  void end_segment(int32_t index) {
    std::erase_if(leases_, [&](const Lease& lease) {
      if (lease.until > index) return false;
      host_.give_back_arena(lease.data);
      return true;
    });
  }

  void run_step(int32_t index) {
    step_ = index;
    const StepPlan& step_plan = call_plan_.steps()[static_cast<size_t>(index)];
    std::visit([&](const auto& step) { run_step(step, step_plan); },
               plan_.steps[static_cast<size_t>(index)]);
  }

  std::span<const int64_t> values(int32_t first, size_t count) const {
    return {values_ + first, count};
  }

  void run_step(const AllocateStep& step, const StepPlan& step_plan) {
    if (step.arena) return;
    const size_t rank = step.spec.shape.size();
    host_.allocate(step.slot, step.spec.dtype, values(step_plan.values, rank),
                   values(step_plan.values + static_cast<int32_t>(rank), rank), step.spec.device);
  }

  void run_step(const LaunchStep& step, const StepPlan& step_plan) {
    fill_buffers(step_plan, buffers_.data());
    const int64_t* sizes = values_ + step_plan.values;
    const CheckFailure failure =
        kernels_[static_cast<size_t>(step_)]->run({buffers_.data(), sizes}, ranges_of(step, sizes),
                                                  {parallel_for_, stream_, step.device.index});
    if (failure.code != 0) fail(step, failure);
  }

  void fill_buffers(const StepPlan& step_plan, void** buffers) {
    for (const int32_t buffer : step_plan.buffers)
      *buffers++ = buffer < 0 ? arena_[~buffer] : host_.data(buffer);
  }

  static std::span<const int64_t> ranges_of(const LaunchStep& step, const int64_t* sizes) {
    return {sizes + step.sizes.size(), 2 * step.phases.size()};
  }

  // Launches that run at the same time.
  void run_wave_at(int32_t first, int32_t count) {
    const auto plan_of = [&](int32_t i) -> const StepPlan& {
      return call_plan_.steps()[static_cast<size_t>(first + i)];
    };
    const auto step_of = [&](int32_t i) -> const LaunchStep& {
      return std::get<LaunchStep>(plan_.steps[static_cast<size_t>(first + i)]);
    };
    std::vector<HostLaunch> launches;
    launches.reserve(static_cast<size_t>(count));
    void** of_launch = buffers_.data();
    for (int32_t i = 0; i < count; ++i) {
      fill_buffers(plan_of(i), of_launch);
      const int64_t* sizes = values_ + plan_of(i).values;
      const Kernel& kernel = *kernels_[static_cast<size_t>(first + i)];
      launches.push_back({static_cast<const HostKernel&>(kernel).phases(),
                          {of_launch, sizes},
                          ranges_of(step_of(i), sizes)});
      of_launch += plan_of(i).buffers.size();
    }
    const FailedLaunch failed =
        run_wave(launches, parallel_for_,
                 step_of(count - 1).in_turns ? WaveWay::kTurns : WaveWay::kEndToEnd);
    if (failed.failure.code != 0)
      fail(step_of(static_cast<int32_t>(failed.launch)), failed.failure);
  }

  [[noreturn]] void fail(const LaunchStep& step, const CheckFailure& failure) {
    for (const KernelError& error : step.errors)
      if (error.code == failure.code)
        host_.raise({error.code, error.exception, fill_in(error.text, failure.details)},
                    step.source);
    MLCC_UNREACHABLE("kernel ", step.label, ": unknown error code ", failure.code);
  }

  void poll() {
    if (polled_.kernel == nullptr) return;
    if (const std::optional<KernelError> error = polled_.kernel->poll(polled_.device))
      host_.raise(*error, "");
  }

  void run_step(const ExternStep& step, const StepPlan&) {
    host_.call_extern(step, static_cast<size_t>(step_), evaluate_);
    poll();  // it may have waited for the device
  }

  void run_step(const ViewStep& step, const StepPlan& step_plan) {
    const size_t rank = step.spec.shape.size();
    const auto after_shape = step_plan.values + static_cast<int32_t>(rank);
    host_.make_view(step.slot, step.base, values(step_plan.values, rank), values(after_shape, rank),
                    values_[after_shape + static_cast<int32_t>(rank)]);
  }

  void run_step(const BindStep& step, const StepPlan& step_plan) {
    const int64_t value =
        step.dim < 0 ? host_.size(step.slot) : host_.tensor_size(step.slot, step.dim);
    int64_t& symbol = symbols_[step_plan.symbol];
    MLCC_USER_CHECK(!step_plan.rebinds || symbol == value, "size ", step.symbol, ": found ", value,
                    " where it was ", symbol, " before");
    symbol = value;
  }

  void run_step(const ReleaseStep&, const StepPlan& step_plan) {
    for (Slot slot : step_plan.releases) host_.release(slot);
  }

  void run_step(const SizeStep& step, const StepPlan& step_plan) {
    host_.set_size(step.slot, values_[step_plan.values]);
  }

  // Of an expression that an extern step holds, or (slowly) of any other.
  int64_t value_of(const SymExpr& expr) {
    if (expr.is_constant()) return *expr.as_constant();
    if (const int32_t* index = call_plan_.find_value(&expr)) return values_[*index];
    return expr.evaluate([this](std::string_view name) {
      const std::vector<std::string>& names = call_plan_.symbols();
      const auto it = std::find(names.begin(), names.end(), name);
      MLCC_CHECK(it != names.end(), "symbol ", name, ": not bound");
      return symbols_[static_cast<size_t>(it - names.begin())];
    });
  }

  struct Lease {
    char* data;
    int32_t until;
  };

  const ExecutablePlan& plan_;
  const CallPlan& call_plan_;
  const std::vector<KernelPtr>& kernels_;
  const std::vector<int32_t>& waves_;
  const Polled& polled_;
  Host& host_;
  const ParallelFor& parallel_for_;
  void* const stream_;
  Scratch<int64_t, 16> symbols_;
  Scratch<char*, 64> arena_;
  Scratch<void*, 32> buffers_;
  const std::function<int64_t(const SymExpr&)> evaluate_;
  std::shared_ptr<const SegmentSizes> sizes_;
  const int64_t* values_ = nullptr;
  std::vector<Lease> leases_;
  int64_t arena_bytes_ = 0;
  int32_t step_ = 0;
};

Polled find_polled(const ExecutablePlan& plan, const std::vector<KernelPtr>& kernels) {
  for (size_t i = 0; i < plan.steps.size(); ++i)
    if (kernels[i] != nullptr && kernels[i]->is_asynchronous())
      return {kernels[i].get(), std::get<LaunchStep>(plan.steps[i]).device.index};
  return {};
}

void check_kept(const ExecutablePlan& plan) {
  MLCC_CHECK(plan.kept.size() <= plan.inputs.size(), "executable: more kept inputs than inputs");
  const auto first = static_cast<Slot>(plan.inputs.size() - plan.kept.size());
  for (size_t i = 0; i < plan.kept.size(); ++i) {
    const KeptInput& kept = plan.kept[i];
    MLCC_CHECK(kept.slot == first + static_cast<Slot>(i), "executable: kept input ", i,
               " is in slot ", kept.slot);
    MLCC_CHECK(
        kept.executable != nullptr && kept.executable->plan().inputs.size() == kept.sources.size(),
        "executable: kept input ", i, " has no recipe for ", kept.sources.size(), " sources");
    for (const Slot source : kept.sources)
      MLCC_CHECK(source >= 0 && source < first, "executable: kept input ", i, " reads slot ",
                 source);
  }
}

std::vector<KernelPtr> kernels_per_step(const ExecutablePlan& plan,
                                        std::vector<KernelPtr> kernels) {
  std::vector<KernelPtr> per_step(plan.steps.size());
  size_t next = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto* launch = std::get_if<LaunchStep>(&plan.steps[i]);
    if (launch == nullptr) continue;
    MLCC_CHECK(next < kernels.size() && kernels[next] != nullptr, "executable: launch ", next, " (",
               launch->label, ") has no kernel");
    const int num_phases = kernels[next]->num_phases();
    MLCC_CHECK(num_phases == static_cast<int>(launch->phases.size()), "executable: launch ", next,
               " (", launch->label, ") plans ", launch->phases.size(), " phases, its kernel has ",
               num_phases);
    MLCC_CHECK(!launch->beside || (i > 0 && std::holds_alternative<LaunchStep>(plan.steps[i - 1])),
               "executable: launch ", next, " (", launch->label, ") runs beside no launch");
    per_step[i] = std::move(kernels[next++]);
  }
  MLCC_CHECK(next == kernels.size(), "executable: ", kernels.size(), " kernels for ", next,
             " launches");
  return per_step;
}

// Launches that do not all run on the host's threads as plain kernels run in turn.
std::vector<int32_t> waves_of(const ExecutablePlan& plan, const std::vector<KernelPtr>& kernels) {
  std::vector<int32_t> waves(plan.steps.size(), 1);
  const auto is_host = [&](size_t step) {
    return dynamic_cast<const HostKernel*>(kernels[step].get()) != nullptr;
  };
  for (size_t first = 0; first < plan.steps.size(); ++first) {
    if (!is_host(first)) continue;
    size_t end = first + 1;
    while (end < plan.steps.size() && is_host(end) && std::get<LaunchStep>(plan.steps[end]).beside)
      ++end;
    waves[first] = static_cast<int32_t>(end - first);
    first = end - 1;
  }
  return waves;
}

}  // namespace

Executable::Executable(ExecutablePlan plan, std::vector<KernelPtr> kernels)
    : plan_(std::move(plan)), kernels_(kernels_per_step(plan_, std::move(kernels))),
      waves_(waves_of(plan_, kernels_)), polled_(find_polled(plan_, kernels_)),
      call_plan_(std::make_unique<CallPlan>(plan_)) {
  check_kept(plan_);
}

Executable::~Executable() = default;

const std::vector<std::string>& Executable::symbols() const { return call_plan_->symbols(); }

int64_t Executable::arena_bytes(std::span<const int64_t> symbols) const {
  int64_t bytes = 0;
  for (const auto& segment : call_plan_->segments())
    if (!segment->exprs.empty()) bytes += segment->sizes(symbols)->arena_bytes;
  return bytes;
}

void Executable::run(Host& host, const ParallelFor& parallel_for) const {
  const int64_t bytes =
      Call(plan_, *call_plan_, kernels_, waves_, polled_, host, parallel_for).run();
  int64_t largest = arena_bytes_.load(std::memory_order_relaxed);
  while (largest < bytes &&
         !arena_bytes_.compare_exchange_weak(largest, bytes, std::memory_order_relaxed)) {
  }
}

}  // namespace mlcc::runtime
