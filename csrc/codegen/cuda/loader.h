// Makes modules of the CUDA backend callable.
#pragma once

#include <memory>

#include "codegen/cuda/driver_api.h"
#include "runtime/object_loader.h"

namespace mlcc::codegen::cuda {

// Loads modules for this device's architecture; kernels can be launched on every device of the
// same. Code once loaded stays until the process ends: a captured graph may launch it without
// anyone holding the kernel.
std::shared_ptr<runtime::ObjectLoader> make_loader(const DriverApi& api, const DeviceInfo& device);

}  // namespace mlcc::codegen::cuda
