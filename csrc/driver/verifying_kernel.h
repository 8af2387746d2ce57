// MLCC_VERIFY: a kernel that is checked while the program runs.
//
//   off     nothing (no wrapper at all)
//   first   its first run, beside a reference: the group's nodes one by one in the interpreter
//   sample  its first run, and then each hundredth
//   always  every run
//   nan     every run, without a reference: NaN or an infinity in a result where no input has one
//
// A difference beyond what comparison.h allows is told by a warning (InternalError under `strict`),
// the kernel's text is dumped, and from then on the program gets the reference's results from this
// kernel.
//
// Not checked, with a line in the log that says so: kernels on a GPU that is not emulated (their
// memory is not the host's), those over more elements than the interpreter does in some seconds,
// and those that read other values than their nodes do. Random draws are calls of ATen, thus
// inputs. Updates whose order is open (atomics) are compared like sums. A check that fails (an
// index out of range) must fail in the reference too.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "driver/options.h"
#include "driver/reference.h"
#include "runtime/kernel.h"

namespace mlcc::driver {

enum class Verification : uint8_t { kOff, kFirst, kSample, kAlways, kNan };
// Error on an unknown name.
Verification parse_verification(std::string_view name);

struct VerifiedLaunch {
  runtime::KernelPtr kernel;
  std::string label;                   // for messages
  std::string text;                    // loop IR, for the dump
  std::vector<graph::Value*> buffers;  // what the first buffers of a launch are
  // Results that lie in the buffer of an input.
  std::unordered_map<const graph::Value*, graph::Value*> in_place;
  // Sizes of a launch: those of the kernel, and behind them a value for each of
  // reference->symbols().
  size_t num_kernel_sizes = 0;
  std::shared_ptr<const Reference> reference;

  // The place of the value's buffer, or nothing.
  std::optional<size_t> buffer_of(const graph::Value* value) const;
};

// Why a launch cannot be verified; empty if it can.
std::string why_not_verified(const VerifiedLaunch& launch, const Options& options);

class VerifyingKernel final : public runtime::Kernel {
 public:
  VerifyingKernel(VerifiedLaunch launch, const Options& options);

  int num_phases() const override { return launch_.kernel->num_phases(); }
  runtime::CheckFailure run(const runtime::KernelArgs& args, std::span<const int64_t> ranges,
                            const runtime::LaunchContext& context) const override;
  runtime::CheckFailure take_failure() const override { return launch_.kernel->take_failure(); }
  bool is_asynchronous() const override { return launch_.kernel->is_asynchronous(); }
  std::optional<runtime::KernelError> poll(int32_t device) const override {
    return launch_.kernel->poll(device);
  }

 private:
  struct Call;
  bool is_due() const;
  runtime::CheckFailure verify(const Call& call) const;
  runtime::CheckFailure compare(const Call& call, runtime::CheckFailure failure,
                                const std::vector<HostTensor>& inputs, std::string& fault) const;
  void compare_outputs(const Call& call, const std::vector<HostTensor>& inputs,
                       const ReferenceRun& reference, std::string& fault) const;
  void find_new_nan(const Call& call, const std::vector<HostTensor>& inputs,
                    std::string& fault) const;
  std::vector<HostTensor> copy(const Call& call, const std::vector<graph::Value*>& values) const;
  void write_outputs(const Call& call, const std::vector<HostTensor>& outputs) const;
  void tell(const std::string& fault) const;

  const VerifiedLaunch launch_;
  const Options options_;
  const Verification mode_;
  mutable std::mutex
      mutex_;  // of a run that is verified: others wait, since it may find the kernel wrong
  mutable std::atomic<int64_t> num_runs_{0};
  mutable std::atomic<bool> is_checked_{false};  // in mode first: nothing is left to do
  mutable std::atomic<bool> is_wrong_{false};
};

}  // namespace mlcc::driver
