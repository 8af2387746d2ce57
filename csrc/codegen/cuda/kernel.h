// A loaded CUDA kernel: its conditions, its launches and its failed checks.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/driver_api.h"
#include "codegen/cuda/faults.h"
#include "codegen/cuda/module.h"
#include "runtime/kernel.h"
#include "runtime/object_loader.h"
#include "runtime/size_expr.h"

namespace mlcc::codegen::cuda {

class CudaKernel final : public runtime::Kernel {
 public:
  // `functions[i]` is phase i, on whichever device. Prepares the launches on `device`, whose
  // context is current: whatever the driver does only outside of a graph capture is done here.
  // Throws Error with the kernel's name, LoadError where the device has no room for the code.
  CudaKernel(const DriverApi& api, int32_t device, const ModuleKernel& kernel,
             std::vector<KernelHandle> functions, const runtime::KernelToLoad& wanted,
             std::shared_ptr<const runtime::LoadedObject> module);
  ~CudaKernel() override;

  int num_phases() const override { return static_cast<int>(functions_.size()); }

  // Launches on context.stream of context.device and returns: no allocation, no lock, no wait. Two
  // exceptions, both at most once and both an Error during a graph capture: arguments that do not
  // meet the conditions of the usual code load the general code, and a device beside the one of the
  // constructor is prepared.
  runtime::CheckFailure run(const runtime::KernelArgs& args, std::span<const int64_t> ranges,
                            const runtime::LaunchContext& context) const override;
  runtime::CheckFailure take_failure() const override;
  bool is_asynchronous() const override { return true; }
  std::optional<runtime::KernelError> poll(int32_t device) const override;

  // Whether the code is right for these arguments.
  bool accepts(const runtime::KernelArgs& args) const;
  // Per buffer: the size of what is passed by value, 0: a pointer.
  const std::vector<int32_t>& value_bytes() const { return info_.value_bytes; }

 private:
  struct Divisor {
    runtime::SizeExpr expr;
    int64_t divisor;
  };
  // What differs between devices.
  struct OnDevice {
    std::vector<int64_t> most_blocks;  // per phase
    FaultLog* log = nullptr;
    std::optional<FaultSlot> faults;  // if there are checks
  };

  const OnDevice& on_device(const runtime::LaunchContext& context) const;
  void prepare(int32_t device) const;
  int64_t most_blocks(size_t phase, int32_t device) const;
  const runtime::Kernel& general(const runtime::LaunchContext& context) const;
  // Tells an emulator which memory the following launches use.
  void tell_uses(const runtime::KernelArgs& args) const;
  void refuse_capture(const runtime::LaunchContext& context, std::string_view why) const;
  void launch(const runtime::KernelArgs& args, std::span<const int64_t> ranges,
              const runtime::LaunchContext& context, const OnDevice& on_device) const;

  static constexpr size_t kMostDevices = 32;

  const DriverApi& api_;
  const KernelInfo info_;
  const std::string label_, who_;  // the second begins with "kernel"
  const size_t num_sizes_;
  const std::vector<KernelHandle> functions_;
  const std::vector<runtime::KernelError> errors_;
  const runtime::FindGeneralCode find_general_;
  const std::shared_ptr<const runtime::LoadedObject> module_;
  std::vector<uintptr_t> address_masks_;  // per buffer: bits that must be 0; values have none
  std::vector<Divisor> divisible_;
  std::vector<runtime::SizeExpr> below_2_30_;
  std::vector<runtime::SizeExpr> buffer_bytes_;  // for an emulator

  mutable std::mutex mutex_;  // of what is made late
  mutable std::array<std::atomic<const OnDevice*>, kMostDevices> devices_{};
  mutable std::atomic<const runtime::Kernel*> general_{nullptr};
  mutable runtime::KernelPtr general_owner_;
};

}  // namespace mlcc::codegen::cuda
