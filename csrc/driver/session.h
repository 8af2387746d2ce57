// The state a process keeps between compilations: the backend, the kernel cache, the disk store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/backend.h"
#include "driver/options.h"
#include "runtime/kernel_cache.h"
#include "runtime/object_loader.h"
#include "runtime/store.h"
#include "support/result.h"

namespace mlcc::driver {

struct CpuBackend {
  std::shared_ptr<codegen::Backend> backend;
  std::shared_ptr<runtime::ObjectLoader> loader;
};

void set_llvm_library(const std::string& path);
// Where the Python packages of CUDA have NVRTC.
void set_nvrtc_folders(const std::vector<std::string>& folders);

// The backend for this CPU (or the one that `options.cpu` names), opened at the first call. Throws
// Error if libmlcc_llvm.so cannot be opened, or if this machine cannot run code for that CPU.
const CpuBackend& cpu_backend(const Options& options);

// The backend for GPU `index`, or why there is none.
Result<const CpuBackend*> find_cuda_backend(const Options& options, int32_t index = 0);

runtime::KernelCache& kernel_cache();
// The store in the options' folder; null if it is turned off.
std::shared_ptr<runtime::Store> store(const Options& options);

}  // namespace mlcc::driver
