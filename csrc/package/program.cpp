#include "package/program.h"

#include <utility>

#include "package/status.h"
#include "runtime/host_kernel.h"

namespace mlcc::package {
namespace {

// Steps in the order in which they run: what a slot is when a step reads it.
class PlanChecker {
 public:
  explicit PlanChecker(const runtime::ExecutablePlan& plan)
      : is_filled_(static_cast<size_t>(plan.num_slots), false) {
    for (size_t i = 0; i < plan.inputs.size(); ++i) fill(static_cast<runtime::Slot>(i));
    for (const runtime::Step& step : plan.steps)
      std::visit([this](const auto& one) { check(one); }, step);
    for (const runtime::Slot slot : plan.outputs) need(slot);
  }

 private:
  void fill(runtime::Slot slot) { is_filled_[static_cast<size_t>(slot)] = true; }
  void need(runtime::Slot slot) const {
    MLCC_STATUS_CHECK(is_filled_[static_cast<size_t>(slot)], MLCC_INVALID_FILE, "plan: slot ", slot,
                      " is used before it is filled");
  }

  void check(const runtime::AllocateStep& step) { fill(step.slot); }
  void check(const runtime::LaunchStep& step) {
    for (const runtime::Slot slot : step.buffers) need(slot);
  }
  void check(const runtime::ViewStep& step) {
    need(step.base);
    fill(step.slot);
  }
  void check(const runtime::BindStep& step) { need(step.slot); }
  void check(const runtime::ReleaseStep& step) {
    for (const runtime::Slot slot : step.slots) need(slot);
  }
  void check(const runtime::SizeStep& step) { fill(step.slot); }
  void check(const runtime::ExternStep&) { MLCC_UNREACHABLE("a call in a package"); }

  std::vector<bool> is_filled_;
};

// Of a plan that is inconsistent where the decoder does not see it.
std::unique_ptr<const runtime::Executable> executable_of(runtime::ExecutablePlan plan,
                                                         std::vector<runtime::KernelPtr> kernels) {
  try {
    return std::make_unique<const runtime::Executable>(std::move(plan), std::move(kernels));
  } catch (const InternalError& error) {
    throw StatusError(MLCC_INVALID_FILE, error.what());
  }
}

std::vector<runtime::KernelPtr> kernels_of(const Contents& contents, const char* code) {
  std::vector<runtime::KernelPtr> kernels;
  for (const std::vector<int64_t>& entries : contents.entries) {
    std::vector<runtime::PhaseFunction> phases;
    for (const int64_t entry : entries)
      phases.push_back(reinterpret_cast<runtime::PhaseFunction>(const_cast<char*>(code) + entry));
    kernels.push_back(std::make_shared<runtime::HostKernel>("k", std::move(phases)));
  }
  return kernels;
}

}  // namespace

Program::Program(Contents contents, const char* code) {
  PlanChecker checked(contents.plan);
  std::vector<runtime::KernelPtr> kernels = kernels_of(contents, code);
  executable_ = executable_of(std::move(contents.plan), std::move(kernels));
  ports_ = std::make_unique<const Ports>(contents, *executable_);
  inputs_ = std::move(contents.inputs);
}

}  // namespace mlcc::package
