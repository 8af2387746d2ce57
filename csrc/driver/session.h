// The state a process keeps between compilations: the backends, the kernel cache, the disk store.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "codegen/backend.h"
#include "codegen/cuda/driver_api.h"
#include "driver/options.h"
#include "runtime/kernel_cache.h"
#include "runtime/object_loader.h"
#include "runtime/store.h"
#include "support/result.h"
#include "types/device.h"

namespace mlcc::driver {

// How kernels of one kind of device are compiled and loaded.
struct DeviceBackend {
  std::shared_ptr<codegen::Backend> backend;
  std::shared_ptr<runtime::ObjectLoader> loader;
  const codegen::cuda::DriverApi* driver = nullptr;  // of GPUs
  std::string description = {};  // of a GPU: "NVIDIA H200, sm_90, ...; NVRTC 13.0 from ..."
  std::string cannot_run = {};   // why this machine does not run the code; "": it does
};

void set_llvm_library(const std::string& path);
// Where the Python packages of CUDA have NVRTC.
void set_nvrtc_folders(const std::vector<std::string>& folders);

// The backend for this CPU (or the one that `options.cpu` names, whose code this machine may not
// run), opened at the first call. Throws Error if libmlcc_llvm.so cannot be opened, or if it knows
// no such CPU.
const DeviceBackend& cpu_backend(const Options& options);

// Of a target's features those whose instructions may stand in its code, sorted.
std::vector<std::string> needed_features(const codegen::Target& target);

// The backend for GPU `index`, opened at the first call, or why there is none: switched off, no
// driver, no such device, no NVRTC. With `options.gpu` "emulate" both libraries are
// libmlcc_emulator.so beside libmlcc_llvm.so, and the GPU is an emulated one. Error on an unknown
// value of that option.
Result<const DeviceBackend*> find_cuda_backend(const Options& options, int32_t index = 0);
// The same; throws Error with the reason.
const DeviceBackend& cuda_backend(const Options& options, int32_t index = 0);
bool emulates_gpu(const Options& options);

// Of the device that kernels run on for tensors on `device`: itself, or with `options.gpu`
// "emulate" the emulated GPU.
const DeviceBackend& backend_for(const Options& options, const Device& device);

// A compiler for `options.cuda_arch`: needs neither a GPU nor a driver.
Result<std::shared_ptr<codegen::Backend>> open_cuda_compiler(const Options& options);

// How much freed memory and how many kept values the process keeps: what the last compilation or
// assignment of an option says.
void apply_memory_options(const Options& options);

runtime::KernelCache& kernel_cache();
// The store in the options' folder; null if it is turned off.
std::shared_ptr<runtime::Store> store(const Options& options);

}  // namespace mlcc::driver
