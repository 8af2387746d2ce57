// Where kernels report failed checks: records in host memory that the device writes.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cuda/driver_api.h"
#include "codegen/cuda/kernel_info.h"
#include "runtime/kernel.h"

namespace mlcc::codegen::cuda {

// One kernel's record on one device.
class FaultSlot {
 public:
  FaultSlot(FaultRecord* record, DevicePointer device) : record_(record), device_(device) {}

  // The failure reported since the last call, if it is complete. Costs one load where there is
  // none; of several threads one gets it.
  runtime::CheckFailure take() const;
  DevicePointer device_pointer() const { return device_; }

 private:
  FaultRecord* record_;
  DevicePointer device_;
};

// All records of a device's kernels. They share pages of pinned memory and are never freed, since a
// captured graph may launch a kernel for as long as the process lives. What nobody took before the
// process exits is told in a warning.
class FaultLog {
 public:
  // Lives as long as the process.
  static FaultLog& of(const DriverApi& api, int32_t device);

  // Needs a current context. `kernel` is for messages, `errors` are those of its checks. Throws
  // LoadError where there is no memory.
  FaultSlot add(const std::string& kernel, std::vector<runtime::KernelError> errors);

  // A failure of any of them, ready to be raised. Costs one load where there is none.
  std::optional<runtime::KernelError> take_any();

  void warn_of_all();  // at the end of the process

 private:
  struct Entry {
    FaultSlot slot;
    std::string kernel;
    std::vector<runtime::KernelError> errors;
  };
  FaultLog(const DriverApi& api, int32_t device) : api_(api), device_(device) {}
  void add_page(const std::string& kernel);
  runtime::KernelError describe(const Entry& entry, const runtime::CheckFailure& failure) const;

  const DriverApi& api_;
  const int32_t device_;
  std::atomic<int64_t*> pending_{nullptr};  // not 0: look at the records; null: there are none
  std::mutex mutex_;                        // of what follows
  DevicePointer pending_on_device_ = 0;
  char* page_ = nullptr;  // the one that is being filled
  DevicePointer page_on_device_ = 0;
  size_t used_ = 0;  // of it, in bytes
  std::vector<Entry> entries_;
};

}  // namespace mlcc::codegen::cuda
