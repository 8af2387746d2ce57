// The state a process keeps between compilations: the backend, the kernel cache, the disk store.
#pragma once

#include <memory>
#include <string>

#include "codegen/backend.h"
#include "driver/options.h"
#include "runtime/kernel_cache.h"
#include "runtime/object_loader.h"
#include "runtime/store.h"

namespace mlcc::driver {

struct CpuBackend {
  std::shared_ptr<codegen::Backend> backend;
  std::shared_ptr<runtime::ObjectLoader> loader;
};

void set_llvm_library(const std::string& path);

// The backend for this CPU (or the one that `options.cpu` names), opened at the first call. Throws
// Error if libmlcc_llvm.so cannot be opened, or if this machine cannot run code for that CPU.
const CpuBackend& cpu_backend(const Options& options);

runtime::KernelCache& kernel_cache();
// The store in the options' folder; null if it is turned off.
std::shared_ptr<runtime::Store> store(const Options& options);

}  // namespace mlcc::driver
