#include "codegen/cuda/kernel.h"

#include <algorithm>

#include "support/error.h"
#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

// Blocks of a launch, in those that a device holds at once: several waves even out blocks of
// unequal length, more only add start-up.
constexpr int64_t kWaves = 4;

// A dynamic allocation above this must be asked for (CUDA programming guide, compute capabilities).
constexpr int32_t kPlainSharedBytes = 48 * 1024;

constexpr int64_t kTwoTo30 = int64_t{1} << 30;

// Of a launch, on the stack; larger ones take the heap.
constexpr size_t kInlineParameters = 64;

int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

std::string label_of(const runtime::KernelToLoad& wanted) {
  return wanted.label.empty() ? wanted.name : wanted.name + " (" + wanted.label + ")";
}

}  // namespace

CudaKernel::CudaKernel(const DriverApi& api, int32_t device, const ModuleKernel& kernel,
                       std::vector<KernelHandle> functions, const runtime::KernelToLoad& wanted,
                       std::shared_ptr<const runtime::LoadedObject> module)
    : Kernel(wanted.name), api_(api), info_(kernel.info), label_(label_of(wanted)),
      who_("kernel " + label_), num_sizes_(kernel.sizes.size()), functions_(std::move(functions)),
      errors_(wanted.errors), find_general_(wanted.find_general), module_(std::move(module)) {
  const auto index_of = [&](std::string_view name) {
    const auto it = std::find(kernel.sizes.begin(), kernel.sizes.end(), name);
    MLCC_USER_CHECK(it != kernel.sizes.end(), "kernel ", label_, ": ", name, " is no size of it");
    return static_cast<int32_t>(it - kernel.sizes.begin());
  };
  for (size_t i = 0; i < info_.alignment.size(); ++i)
    address_masks_.push_back(
        info_.value_bytes[i] > 0 ? 0 : static_cast<uintptr_t>(std::max(info_.alignment[i], 1) - 1));
  for (const Divisibility& condition : info_.divisible)
    divisible_.push_back({runtime::SizeExpr(condition.expr, index_of), condition.divisor});
  for (const SymExpr& expr : info_.below_2_30) below_2_30_.emplace_back(expr, index_of);
  if (api.emulator_use != nullptr)
    for (const SymExpr& expr : info_.buffer_bytes) buffer_bytes_.emplace_back(expr, index_of);
  prepare(device);
}

CudaKernel::~CudaKernel() {
  for (const auto& device : devices_) delete device.load(std::memory_order_relaxed);
}

bool CudaKernel::accepts(const runtime::KernelArgs& args) const {
  for (size_t i = 0; i < address_masks_.size(); ++i)
    if ((reinterpret_cast<uintptr_t>(args.buffers[i]) & address_masks_[i]) != 0) return false;
  for (const int32_t size : info_.nonnegative)
    if (args.sizes[size] < 0) return false;
  const std::span<const int64_t> sizes(args.sizes, num_sizes_);
  for (const Divisor& condition : divisible_)
    if (condition.expr.evaluate(sizes) % condition.divisor != 0) return false;
  try {
    return std::all_of(below_2_30_.begin(), below_2_30_.end(), [&](const runtime::SizeExpr& expr) {
      return expr.evaluate(sizes) < kTwoTo30;
    });
  } catch (const Error&) {  // more than 64 bits hold
    return false;
  }
}

runtime::CheckFailure CudaKernel::run(const runtime::KernelArgs& args,
                                      std::span<const int64_t> ranges,
                                      const runtime::LaunchContext& context) const {
  if (!accepts(args)) return general(context).run(args, ranges, context);
  const DeviceScope scope(api_, context.device, who_);
  const OnDevice& on_device = this->on_device(context);
  if (api_.emulator_use != nullptr) tell_uses(args);
  launch(args, ranges, context, on_device);
  return on_device.faults ? on_device.faults->take() : runtime::CheckFailure{};
}

runtime::CheckFailure CudaKernel::take_failure() const {
  for (const auto& device : devices_) {
    const OnDevice* found = device.load(std::memory_order_acquire);
    if (found == nullptr || !found->faults) continue;
    if (const runtime::CheckFailure failure = found->faults->take(); failure.code != 0)
      return failure;
  }
  const runtime::Kernel* general = general_.load(std::memory_order_acquire);
  return general != nullptr ? general->take_failure() : runtime::CheckFailure{};
}

std::optional<runtime::KernelError> CudaKernel::poll(int32_t device) const {
  const auto place = static_cast<size_t>(device);
  const OnDevice* found =
      place < kMostDevices ? devices_[place].load(std::memory_order_acquire) : nullptr;
  if (found == nullptr) return std::nullopt;
  return found->log->take_any();
}

void CudaKernel::tell_uses(const runtime::KernelArgs& args) const {
  std::vector<EmulatedUse> uses;
  for (size_t i = 0; i < buffer_bytes_.size(); ++i) {
    const int64_t bytes = buffer_bytes_[i].evaluate({args.sizes, num_sizes_});
    if (bytes > 0 && args.buffers[i] != nullptr)
      uses.push_back({args.buffers[i], static_cast<uint64_t>(bytes), info_.is_fresh[i]});
  }
  api_.emulator_use(uses.data(), static_cast<int32_t>(uses.size()));
}

void CudaKernel::launch(const runtime::KernelArgs& args, std::span<const int64_t> ranges,
                        const runtime::LaunchContext& context, const OnDevice& on_device) const {
  const size_t num_buffers = address_masks_.size();
  const size_t count = num_buffers + num_sizes_ + 2;
  std::array<void*, kInlineParameters> few;
  std::vector<void*> many(count > few.size() ? count : 0);
  void** const parameters = many.empty() ? few.data() : many.data();
  // The driver reads through these pointers before it returns and writes nothing.
  void** next = parameters;
  for (size_t i = 0; i < num_buffers; ++i)
    *next++ = info_.value_bytes[i] > 0 ? args.buffers[i] : const_cast<void**>(&args.buffers[i]);
  for (size_t i = 0; i < num_sizes_; ++i) *next++ = const_cast<int64_t*>(&args.sizes[i]);
  void** const iterations = next++;
  DevicePointer record = 0;
  if (on_device.faults) {
    record = on_device.faults->device_pointer();
    *next = &record;
  }
  for (size_t p = 0; p < functions_.size(); ++p) {
    int64_t extent = ranges[2 * p];
    if (extent <= 0) continue;
    *iterations = &extent;
    const PhaseInfo& phase = info_.phases[p];
    const int64_t needed = divide_up(extent, phase.threads / phase.group);
    const auto blocks = static_cast<uint32_t>(std::min(needed, on_device.most_blocks[p]));
    const DriverStatus status = api_.launch_kernel(
        functions_[p], blocks, 1, 1, static_cast<uint32_t>(phase.threads), 1, 1,
        static_cast<uint32_t>(phase.shared_bytes), context.stream, parameters, nullptr);
    if (status != kDriverSuccess)
      api_.check(status, "kernel ", label_, ": launching phase ", p, " on ", blocks, " blocks of ",
                 phase.threads, " threads");
  }
}

const CudaKernel::OnDevice& CudaKernel::on_device(const runtime::LaunchContext& context) const {
  const auto device = static_cast<size_t>(context.device);
  MLCC_USER_CHECK(device < kMostDevices, "kernel ", label_, ": device cuda:", context.device,
                  ": at most ", kMostDevices, " devices are supported");
  const OnDevice* found = devices_[device].load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  refuse_capture(context, "it was not used on this device yet");
  prepare(context.device);
  return *devices_[device].load(std::memory_order_acquire);
}

void CudaKernel::prepare(int32_t device) const {
  const std::lock_guard lock(mutex_);
  std::atomic<const OnDevice*>& place = devices_.at(static_cast<size_t>(device));
  if (place.load(std::memory_order_acquire) != nullptr) return;
  auto made = std::make_unique<OnDevice>();
  for (size_t p = 0; p < functions_.size(); ++p)
    made->most_blocks.push_back(most_blocks(p, device));
  made->log = &FaultLog::of(api_, device);
  if (info_.has_checks) made->faults = made->log->add(label_, errors_);
  place.store(made.release(), std::memory_order_release);
}

int64_t CudaKernel::most_blocks(size_t p, int32_t device) const {
  const PhaseInfo& phase = info_.phases[p];
  int32_t multiprocessors = 0, blocks = 0;
  api_.check_load(api_.device_get_attribute(&multiprocessors, kMultiprocessorCount, device),
                  "kernel ", label_, ": asking the device for its multiprocessors");
  const bool is_static_known = phase.static_shared_bytes >= 0;  // it is not of PTX
  if (is_static_known ? phase.shared_bytes + phase.static_shared_bytes > kPlainSharedBytes
                      : phase.shared_bytes > 0)
    api_.check_load(api_.kernel_set_attribute(kMaxDynamicSharedSizeBytes, phase.shared_bytes,
                                              functions_[p], device),
                    "kernel ", label_, ": asking for ", phase.shared_bytes,
                    " bytes of shared memory in phase ", p);
  // Also makes the driver load the code now rather than at the first launch.
  api_.check_load(
      api_.occupancy_max_active_blocks_per_multiprocessor(&blocks, functions_[p], phase.threads,
                                                          static_cast<size_t>(phase.shared_bytes)),
      "kernel ", label_, ": loading the code of phase ", p);
  if (blocks <= 0)
    throw LoadError(detail::join("kernel ", label_, ": a block of phase ", p, " (", phase.threads,
                                 " threads, ", phase.shared_bytes,
                                 " bytes of shared memory) does not fit the device"));
  return int64_t{multiprocessors} * blocks * kWaves;
}

const runtime::Kernel& CudaKernel::general(const runtime::LaunchContext& context) const {
  if (const runtime::Kernel* found = general_.load(std::memory_order_acquire)) return *found;
  MLCC_CHECK(find_general_, "kernel ", label_,
             ": addresses or sizes that its code does not allow, and there is no other");
  refuse_capture(context, "its arguments need code for unaligned addresses or large sizes, which "
                          "is not loaded yet");
  const std::lock_guard lock(mutex_);
  if (general_owner_ == nullptr) {
    log(LogChannel::kKernels, "kernel ", label_,
        ": unaligned addresses or large sizes: takes the general code");
    general_owner_ = find_general_();
    general_.store(general_owner_.get(), std::memory_order_release);
  }
  return *general_owner_;
}

void CudaKernel::refuse_capture(const runtime::LaunchContext& context, std::string_view why) const {
  int32_t status = kCaptureNone;
  api_.check(api_.stream_is_capturing(context.stream, &status), "kernel ", label_,
             ": asking whether its stream is being captured");
  MLCC_USER_CHECK(
      status == kCaptureNone, "kernel ", label_, ": ", why,
      ", and a CUDA graph is being captured; run the same call once before the capture");
}

}  // namespace mlcc::codegen::cuda
