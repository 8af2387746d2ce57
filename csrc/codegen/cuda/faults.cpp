#include "codegen/cuda/faults.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "support/logging.h"

namespace mlcc::codegen::cuda {
namespace {

constexpr size_t kPageBytes = 4096;
// Of a record: no two share the 32 bytes that the device writes at a time.
constexpr size_t kStride = 32;
static_assert(sizeof(FaultRecord) <= kStride);
static_assert(runtime::kMaxCheckDetails == sizeof(FaultRecord::details) / sizeof(int64_t));

struct Page {
  char* host = nullptr;
  DevicePointer device = 0;
  size_t used = kPageBytes;
};

struct Slots {
  std::mutex mutex;
  std::map<const DriverApi*, Page> pages;  // the one that is being filled
  std::vector<std::pair<FaultRecord*, std::string>> all;
};

Slots& slots() {
  static Slots* const state = new Slots;
  return *state;
}

runtime::CheckFailure take_from(FaultRecord& record) {
  std::atomic_ref<int64_t> code(record.code);
  runtime::CheckFailure failure;
  failure.code = code.load(std::memory_order_acquire);
  if (failure.code <= 0) return {};
  for (size_t i = 0; i < failure.details.size(); ++i)
    failure.details[i] = *static_cast<volatile int64_t*>(&record.details[i]);
  int64_t expected = failure.code;
  if (!code.compare_exchange_strong(expected, 0, std::memory_order_acq_rel)) return {};
  return failure;
}

// At the end of the process.
void tell_unreported() {
  Slots& state = slots();
  const std::lock_guard lock(state.mutex);
  for (const auto& [record, kernel] : state.all)
    if (const runtime::CheckFailure failure = take_from(*record); failure.code != 0)
      log_warning(LogChannel::kKernels, "kernel ", kernel, ": its check ", failure.code,
                  " failed (", failure.details[0], ", ", failure.details[1],
                  ") in a launch whose outcome nobody asked for");
}

Page make_page(const DriverApi& api, const std::string& kernel) {
  void* host = nullptr;
  Page page;
  api.check(api.mem_host_alloc(&host, kPageBytes, kHostMemoryPortable | kHostMemoryDeviceMap),
            "kernel ", kernel, ": memory for its failed checks");
  api.check(api.mem_host_get_device_pointer(&page.device, host, 0), "kernel ", kernel,
            ": memory for its failed checks");
  page.host = static_cast<char*>(host);
  page.used = 0;
  return page;
}

}  // namespace

FaultSlot FaultSlot::make(const DriverApi& api, const std::string& kernel) {
  Slots& state = slots();
  const std::lock_guard lock(state.mutex);
  Page& page = state.pages[&api];
  if (page.used + kStride > kPageBytes) page = make_page(api, kernel);
  auto* record = new (page.host + page.used) FaultRecord{};
  const FaultSlot slot(record, page.device + page.used);
  page.used += kStride;
  if (state.all.empty()) std::atexit(tell_unreported);
  state.all.emplace_back(record, kernel);
  return slot;
}

runtime::CheckFailure FaultSlot::take() const { return take_from(*record_); }

}  // namespace mlcc::codegen::cuda
