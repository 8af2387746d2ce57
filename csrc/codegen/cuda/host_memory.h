// Runs a CUDA kernel over buffers in host memory: for tests and tools.
#pragma once

#include <cstdint>
#include <span>

#include "codegen/cuda/driver_api.h"
#include "runtime/kernel.h"

namespace mlcc::codegen::cuda {

struct HostBuffer {
  void* data;
  int64_t bytes;
  bool is_written;
};

enum class HostAccess : uint8_t {
  kDirect,  // the device reads and writes host memory: the emulator
  kCopies,  // buffers are copied to the device and back
};

// Waits for the end of the launch; tells a failed check of this launch. `kernel` is one of the CUDA
// backend's. Throws Error with what the driver says.
runtime::CheckFailure run_over_host_memory(const DriverApi& api, const runtime::Kernel& kernel,
                                           std::span<const HostBuffer> buffers,
                                           std::span<const int64_t> sizes,
                                           std::span<const int64_t> ranges, HostAccess access);

}  // namespace mlcc::codegen::cuda
