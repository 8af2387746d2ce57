// The driver's C interface: errors, devices, contexts, entry points.
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <string>

#include <dlfcn.h>

#include "cuda_api.h"
#include "driver.h"
#include "memory.h"

namespace mlcc_emulator {
namespace {

constexpr int kMaxDevices = 64;

struct ErrorText {
  CUresult result;
  const char* name;
  const char* description;
};
constexpr ErrorText kErrors[] = {
#define MLCC_EMULATOR_ERROR(name, value, description) {name, #name, description},
#include "cuda_errors.def"
};

std::atomic<bool> is_initialized = false;
std::mutex context_mutex;
CUctx_st contexts[kMaxDevices];
thread_local std::vector<CUcontext> context_stack;

const ErrorText* find_error(CUresult result) {
  for (const ErrorText& error : kErrors)
    if (error.result == result) return &error;
  return nullptr;
}

// -1: not one that the emulator has.
int64_t attribute_value(CUdevice_attribute attribute) {
  const Settings now = settings();
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return kMaxThreadsPerBlock;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return kMaxBlockZ;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return kMaxGridX;
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
  case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return kMaxGridYZ;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: return kSharedPerBlock;
  case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 64 * 1024;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return kWarpSize;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK:
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR: return kRegistersPerMultiprocessor;
  case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return 1980000;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return now.sms;
  case CU_DEVICE_ATTRIBUTE_INTEGRATED:
  case CU_DEVICE_ATTRIBUTE_COMPUTE_MODE:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
  case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
  case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return 0;
  case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
  case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
  case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
  case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED: return 1;
  case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return 3201000;
  case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return 6144;
  case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return 60 << 20;
  case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR: return kThreadsPerMultiprocessor;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return now.arch / 10;
  case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return now.arch % 10;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: return kSharedPerMultiprocessor;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: return kSharedPerBlockOptin;
  case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR: return kBlocksPerMultiprocessor;
  case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return kReservedSharedPerBlock;
  }
  return -1;
}

bool is_context(CUcontext context) {
  return context >= contexts && context < contexts + kMaxDevices && context->retained > 0;
}

}  // namespace

CUresult need_initialized() { return is_initialized ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED; }

CUcontext current_context() { return context_stack.empty() ? nullptr : context_stack.back(); }

CUresult need_context() {
  if (const CUresult error = need_initialized()) return error;
  std::lock_guard lock(context_mutex);
  const CUcontext context = current_context();
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  return context->broken;
}

CUresult need_context_outside_captures() {
  if (const CUresult error = need_context()) return error;
  return forbid_in_captures();
}

bool is_device(CUdevice device) { return device >= 0 && device < settings().devices; }

CUresult note_fault(CUresult result) {
  const Settings now = settings();
  if (result == CUDA_SUCCESS || !(now.sticky || now.late)) return result;
  std::lock_guard lock(context_mutex);
  if (is_context(current_context())) current_context()->broken = result;
  return now.late ? CUDA_SUCCESS : result;
}

}  // namespace mlcc_emulator

using namespace mlcc_emulator;  // of this file's own namespace: what follows is its C face

extern "C" {

CUresult cuInit(unsigned flags) {
  if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!settings().is_valid) return CUDA_ERROR_INVALID_VALUE;  // told on stderr
  if (settings().devices <= 0) return CUDA_ERROR_NO_DEVICE;
  is_initialized = true;
  return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int* version) {
  if (!version) return CUDA_ERROR_INVALID_VALUE;
  *version = static_cast<int>(settings().driver_version);
  return CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult result, const char** out) {
  const ErrorText* error = find_error(result);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = error ? error->name : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuGetErrorString(CUresult result, const char** out) {
  const ErrorText* error = find_error(result);
  if (!out) return CUDA_ERROR_INVALID_VALUE;
  *out = error ? error->description : nullptr;
  return error ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDeviceGetCount(int* count) {
  if (const CUresult error = need_initialized()) return error;
  if (!count) return CUDA_ERROR_INVALID_VALUE;
  *count = static_cast<int>(settings().devices);
  return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  if (const CUresult error = need_initialized()) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(ordinal)) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char* name, int size, CUdevice device) {
  if (const CUresult error = need_initialized()) return error;
  if (!name || size <= 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::snprintf(name, static_cast<size_t>(size), "mlcc emulator (sm_%d)",
                static_cast<int>(settings().arch));
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  if (const CUresult error = need_initialized()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  const int64_t found = attribute_value(attribute);
  if (!value || found < 0) return CUDA_ERROR_INVALID_VALUE;
  *value = static_cast<int>(found);
  return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice device) {
  if (const CUresult error = need_initialized()) return error;
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = static_cast<size_t>(settings().memory);
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  if (const CUresult error = need_initialized()) return error;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device) || device >= kMaxDevices) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(context_mutex);
  contexts[device].device = device;
  ++contexts[device].retained;
  *context = &contexts[device];
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  if (const CUresult error = need_initialized()) return error;
  if (!is_device(device) || device >= kMaxDevices) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(context_mutex);
  if (contexts[device].retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
  if (--contexts[device].retained == 0) contexts[device].broken = CUDA_SUCCESS;
  return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  if (const CUresult error = need_initialized()) return error;
  if (!flags || !active) return CUDA_ERROR_INVALID_VALUE;
  if (!is_device(device) || device >= kMaxDevices) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(context_mutex);
  *flags = 0;
  *active = contexts[device].retained > 0;
  return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  if (const CUresult error = need_initialized()) return error;
  if (!context) return CUDA_ERROR_INVALID_VALUE;
  *context = current_context();
  return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  if (const CUresult error = need_initialized()) return error;
  std::lock_guard lock(context_mutex);
  if (context && !is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  if (!context_stack.empty()) context_stack.pop_back();
  if (context) context_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  if (const CUresult error = need_initialized()) return error;
  std::lock_guard lock(context_mutex);
  if (!is_context(context)) return CUDA_ERROR_INVALID_CONTEXT;
  context_stack.push_back(context);
  return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  if (const CUresult error = need_initialized()) return error;
  if (context_stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
  if (context) *context = context_stack.back();
  context_stack.pop_back();
  return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  if (const CUresult error = need_context()) return error;
  if (!device) return CUDA_ERROR_INVALID_VALUE;
  *device = current_context()->device;
  return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize() { return need_context_outside_captures(); }

// Takes base names: the newest version of each.
CUresult cuGetProcAddress_v2(const char* name, void** function, int, uint64_t, int* status) {
  if (!name || !function) return CUDA_ERROR_INVALID_VALUE;
  Dl_info self;
  static void* library = dladdr(reinterpret_cast<void*>(&cuInit), &self)
                             ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD)
                             : nullptr;
  *function = nullptr;
  for (const char* version : {"_v3", "_v2", ""}) {
    *function = library ? dlsym(library, (std::string(name) + version).c_str()) : nullptr;
    if (*function) break;
  }
  constexpr int found = 0, not_found = 1;
  if (status) *status = *function ? found : not_found;
  return *function ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // extern "C"
