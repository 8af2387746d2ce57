#include "codegen/cuda/faults.h"

#include <cstdlib>
#include <map>
#include <utility>

#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

constexpr size_t kPageBytes = 4096;
// Of a record: no two share the 32 bytes that the device writes at a time.
constexpr size_t kStride = 32;
static_assert(sizeof(FaultRecord) <= kStride);
static_assert(runtime::kMaxCheckDetails == sizeof(FaultRecord::details) / sizeof(int64_t));

struct Logs {
  std::mutex mutex;
  std::map<std::pair<const DriverApi*, int32_t>, FaultLog*> all;
};

Logs& logs() {
  static Logs* const state = new Logs;
  return *state;
}

void warn_of_all_logs() {
  Logs& state = logs();
  const std::lock_guard lock(state.mutex);
  for (const auto& [key, log] : state.all) log->warn_of_all();
}

}  // namespace

runtime::CheckFailure FaultSlot::take() const {
  std::atomic_ref<int64_t> code(record_->code);
  runtime::CheckFailure failure;
  failure.code = code.load(std::memory_order_acquire);
  if (failure.code <= 0) return {};
  for (size_t i = 0; i < failure.details.size(); ++i)
    failure.details[i] = *static_cast<volatile int64_t*>(&record_->details[i]);
  int64_t expected = failure.code;
  if (!code.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) return {};
  return failure;
}

FaultLog& FaultLog::of(const DriverApi& api, int32_t device) {
  Logs& state = logs();
  const std::lock_guard lock(state.mutex);
  if (state.all.empty()) std::atexit(warn_of_all_logs);
  FaultLog*& log = state.all[{&api, device}];
  if (log == nullptr) log = new FaultLog(api, device);
  return *log;
}

void FaultLog::add_page(const std::string& kernel) {
  void* host = nullptr;
  DevicePointer device = 0;
  api_.check_load(
      api_.mem_host_alloc(&host, kPageBytes, kHostMemoryPortable | kHostMemoryDeviceMap), "kernel ",
      kernel, ": memory for its failed checks");
  api_.check_load(api_.mem_host_get_device_pointer(&device, host, 0), "kernel ", kernel,
                  ": memory for its failed checks");
  page_ = static_cast<char*>(host);
  page_on_device_ = device;
  used_ = 0;
  if (pending_on_device_ != 0) return;
  auto* const pending = new (page_) int64_t{0};
  pending_on_device_ = page_on_device_;
  used_ = kStride;
  pending_.store(pending, std::memory_order_release);
}

FaultSlot FaultLog::add(const std::string& kernel, std::vector<runtime::KernelError> errors) {
  const std::lock_guard lock(mutex_);
  if (page_ == nullptr || used_ + kStride > kPageBytes) add_page(kernel);
  auto* const record = new (page_ + used_) FaultRecord{.pending = pending_on_device_};
  const FaultSlot slot(record, page_on_device_ + used_);
  used_ += kStride;
  entries_.push_back({slot, kernel, std::move(errors)});
  return slot;
}

std::optional<runtime::KernelError> FaultLog::take_any() {
  int64_t* const place = pending_.load(std::memory_order_acquire);
  if (place == nullptr) return std::nullopt;
  std::atomic_ref<int64_t> pending(*place);
  if (pending.load(std::memory_order_acquire) == 0) return std::nullopt;
  const std::lock_guard lock(mutex_);
  // Before the records are read, and in this order for the device too: what fails meanwhile sets it
  // again.
  pending.exchange(0);
  for (const Entry& entry : entries_) {
    const runtime::CheckFailure failure = entry.slot.take();
    if (failure.code == 0) continue;
    pending.store(1);  // there may be more
    return describe(entry, failure);
  }
  return std::nullopt;
}

runtime::KernelError FaultLog::describe(const Entry& entry,
                                        const runtime::CheckFailure& failure) const {
  const std::string late = detail::join(
      "\n(found after its call had returned, whose results are not to be used: kernel ",
      entry.kernel, " on cuda:", device_, ")");
  for (const runtime::KernelError& error : entry.errors)
    if (error.code == failure.code)
      return {error.code, error.exception, runtime::fill_in(error.text, failure.details) + late,
              failure.details};
  return {failure.code, "RuntimeError",
          detail::join("check ", failure.code, " failed (", failure.details[0], ", ",
                       failure.details[1], ")", late),
          failure.details};
}

void FaultLog::warn_of_all() {
  const std::lock_guard lock(mutex_);
  for (const Entry& entry : entries_)
    if (const runtime::CheckFailure failure = entry.slot.take(); failure.code != 0)
      log_warning(LogChannel::kKernels, "kernel ", entry.kernel, ": its check ", failure.code,
                  " failed (", failure.details[0], ", ", failure.details[1],
                  ") in a launch whose outcome nobody asked for");
}

}  // namespace mlcc::codegen::cuda
