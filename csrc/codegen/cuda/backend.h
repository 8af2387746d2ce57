// The Backend of NVIDIA GPUs: loop IR to CUDA C++ to a module of machine code. Needs NVRTC, but
// neither a GPU nor a driver.
#pragma once

#include <memory>
#include <string>

#include "codegen/backend.h"
#include "codegen/cuda/nvrtc_api.h"
#include "support/result.h"

namespace mlcc::codegen::cuda {

struct CudaTarget {
  std::string arch;                      // "sm_90"
  int64_t max_shared_bytes = 48 * 1024;  // of a block
  int32_t driver_version = 0;            // that loads the code; 0: not known
};

// Unsupported where this NVRTC has no code for the architecture.
Result<std::shared_ptr<Backend>> make_backend(const NvrtcApi& nvrtc, const CudaTarget& target);

}  // namespace mlcc::codegen::cuda
