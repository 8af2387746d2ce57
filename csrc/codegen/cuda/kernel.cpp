#include "codegen/cuda/kernel.h"

#include <algorithm>

#include "support/error.h"
#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

// Blocks beyond what a device holds at once: several waves even out blocks of unequal length, more
// only add start-up. Not measured on hardware yet.
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

CudaKernel::CudaKernel(const DriverApi& api, int32_t device_index, const ModuleKernel& kernel,
                       std::vector<KernelHandle> functions, const runtime::KernelToLoad& wanted,
                       std::shared_ptr<const runtime::LoadedObject> module)
    : Kernel(wanted.name), api_(api), device_index_(device_index), info_(kernel.info),
      label_(label_of(wanted)), num_sizes_(kernel.sizes.size()), functions_(std::move(functions)),
      find_general_(wanted.find_general), module_(std::move(module)) {
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
  const DeviceOrdinal device = current_device(api_, device_index_);
  if (info_.has_checks) faults_ = FaultSlot::make(api_, label_);
  prepare(device);
}

CudaKernel::~CudaKernel() {
  for (const auto& limits : limits_) delete limits.load(std::memory_order_relaxed);
}

bool CudaKernel::accepts(const runtime::KernelArgs& args) const {
  for (size_t i = 0; i < address_masks_.size(); ++i)
    if ((reinterpret_cast<uintptr_t>(args.buffers[i]) & address_masks_[i]) != 0) return false;
  const std::span<const int64_t> sizes(args.sizes, num_sizes_);
  for (const Divisor& condition : divisible_)
    if (condition.expr.evaluate(sizes) % condition.divisor != 0) return false;
  for (const runtime::SizeExpr& expr : below_2_30_)
    if (expr.evaluate(sizes) >= kTwoTo30) return false;
  return true;
}

runtime::CheckFailure CudaKernel::run(const runtime::KernelArgs& args,
                                      std::span<const int64_t> ranges,
                                      const runtime::LaunchContext& context) const {
  if (!accepts(args)) return general(context).run(args, ranges, context);
  if (!faults_) {
    launch(args, ranges, context);
    return {};
  }
  if (const runtime::CheckFailure failure = faults_->take(); failure.code != 0) return failure;
  launch(args, ranges, context);
  return faults_->take();
}

runtime::CheckFailure CudaKernel::take_failure() const {
  if (faults_)
    if (const runtime::CheckFailure failure = faults_->take(); failure.code != 0) return failure;
  const runtime::Kernel* general = general_.load(std::memory_order_acquire);
  return general != nullptr ? general->take_failure() : runtime::CheckFailure{};
}

void CudaKernel::launch(const runtime::KernelArgs& args, std::span<const int64_t> ranges,
                        const runtime::LaunchContext& context) const {
  const DeviceLimits& limits = this->limits(context);
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
  if (faults_) {
    record = faults_->device_pointer();
    *next = &record;
  }
  for (size_t p = 0; p < functions_.size(); ++p) {
    int64_t extent = ranges[2 * p];
    if (extent <= 0) continue;
    *iterations = &extent;
    const PhaseInfo& phase = info_.phases[p];
    const int64_t needed = divide_up(extent, phase.threads / phase.group);
    const auto blocks = static_cast<uint32_t>(std::min(needed, limits.most_blocks[p]));
    const DriverStatus status = api_.launch_kernel(
        functions_[p], blocks, 1, 1, static_cast<uint32_t>(phase.threads), 1, 1,
        static_cast<uint32_t>(phase.shared_bytes), context.stream, parameters, nullptr);
    if (status != kDriverSuccess)
      api_.check(status, "kernel ", label_, ": launching phase ", p, " on ", blocks, " blocks of ",
                 phase.threads, " threads");
  }
}

const CudaKernel::DeviceLimits& CudaKernel::limits(const runtime::LaunchContext& context) const {
  const auto device = static_cast<size_t>(current_device(api_, device_index_));
  MLCC_USER_CHECK(device < kMostDevices, "kernel ", label_, ": device cuda:", device, ": at most ",
                  kMostDevices, " devices are supported");
  const DeviceLimits* found = limits_[device].load(std::memory_order_acquire);
  if (found != nullptr) return *found;
  refuse_capture(context, "it was not used on this device yet");
  prepare(static_cast<DeviceOrdinal>(device));
  return *limits_[device].load(std::memory_order_acquire);
}

void CudaKernel::prepare(DeviceOrdinal device) const {
  const std::lock_guard lock(mutex_);
  std::atomic<const DeviceLimits*>& place = limits_.at(static_cast<size_t>(device));
  if (place.load(std::memory_order_acquire) != nullptr) return;
  int32_t multiprocessors = 0;
  api_.check(api_.device_get_attribute(&multiprocessors, kMultiprocessorCount, device), "kernel ",
             label_, ": asking the device for its multiprocessors");
  auto limits = std::make_unique<DeviceLimits>();
  for (size_t p = 0; p < functions_.size(); ++p) {
    const PhaseInfo& phase = info_.phases[p];
    if (phase.shared_bytes + std::max(phase.static_shared_bytes, 0) > kPlainSharedBytes)
      api_.check(api_.kernel_set_attribute(kMaxDynamicSharedSizeBytes, phase.shared_bytes,
                                           functions_[p], device),
                 "kernel ", label_, ": asking for ", phase.shared_bytes,
                 " bytes of shared memory in phase ", p);
    // Also makes the driver load the code now rather than at the first launch.
    int32_t blocks = 0;
    api_.check(api_.occupancy_max_active_blocks_per_multiprocessor(
                   &blocks, functions_[p], phase.threads, static_cast<size_t>(phase.shared_bytes)),
               "kernel ", label_, ": loading the code of phase ", p);
    MLCC_USER_CHECK(blocks > 0, "kernel ", label_, ": a block of phase ", p, " (", phase.threads,
                    " threads, ", phase.shared_bytes,
                    " bytes of shared memory) does not fit the device");
    limits->most_blocks.push_back(int64_t{multiprocessors} * blocks * kWaves);
  }
  place.store(limits.release(), std::memory_order_release);
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
