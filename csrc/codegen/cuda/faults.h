// Where kernels report failed checks: records in host memory that the device writes.
#pragma once

#include <string>

#include "codegen/cuda/driver_api.h"
#include "codegen/cuda/kernel_info.h"
#include "runtime/kernel.h"

namespace mlcc::codegen::cuda {

// One kernel's record. Records share pages of pinned memory; they are never freed, since a captured
// graph may launch the kernel for as long as the process lives. What nobody took before the process
// exits is told in a warning.
class FaultSlot {
 public:
  // Needs a current context. `kernel` is for messages. Throws Error where there is no memory.
  static FaultSlot make(const DriverApi& api, const std::string& kernel);

  // The failure reported since the last call, if it is complete. Costs one load where there is
  // none; of several threads one gets it.
  runtime::CheckFailure take() const;
  DevicePointer device_pointer() const { return device_; }

 private:
  FaultSlot(FaultRecord* record, DevicePointer device) : record_(record), device_(device) {}
  FaultRecord* record_;
  DevicePointer device_;
};

}  // namespace mlcc::codegen::cuda
