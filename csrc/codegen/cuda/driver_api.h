// What we call of the CUDA driver (libcuda), declared here and opened at run time: one build serves
// machines with and without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "support/result.h"

namespace mlcc::codegen::cuda {

// CUresult, and the few values that we tell apart.
using DriverStatus = int32_t;
constexpr DriverStatus kDriverSuccess = 0;
constexpr DriverStatus kDriverOutOfMemory = 2;
constexpr DriverStatus kDriverNoDevice = 100;
constexpr DriverStatus kDriverInvalidContext = 201;

// Whether the status says that the device, or this process's context on it, cannot be used any more
// (CUDA calls such errors sticky), because of a fault in a kernel or in the device.
bool is_kernel_fault(DriverStatus status);
bool is_device_fault(DriverStatus status);

using DeviceOrdinal = int32_t;   // CUdevice
using DevicePointer = uint64_t;  // CUdeviceptr
using Context = void*;           // CUcontext
using Stream = void*;            // CUstream
using Library = void*;           // CUlibrary: code, loaded in whichever context needs it
using KernelHandle = void*;      // CUkernel; cuLaunchKernel and its kin take it as a CUfunction

// CUdevice_attribute
constexpr int32_t kMaxThreadsPerBlock = 1;
constexpr int32_t kMultiprocessorCount = 16;
constexpr int32_t kComputeCapabilityMajor = 75;
constexpr int32_t kComputeCapabilityMinor = 76;
constexpr int32_t kMaxSharedMemoryPerBlockOptin = 97;
// CUfunction_attribute
constexpr int32_t kMaxDynamicSharedSizeBytes = 8;
// CU_MEMHOSTALLOC_*
constexpr uint32_t kHostMemoryPortable = 1;
constexpr uint32_t kHostMemoryDeviceMap = 2;
// CUstreamCaptureStatus
constexpr int32_t kCaptureNone = 0;

// MlccEmulatorUse of tools/emulator/emulator.h.
struct EmulatedUse {
  const void* begin;
  uint64_t size;
  int32_t is_fresh;
};

// Named as in the CUDA driver API, without "cu" and version suffix.
struct DriverApi {
  DriverStatus (*init)(uint32_t flags);
  DriverStatus (*driver_get_version)(int32_t* version);
  DriverStatus (*get_error_name)(DriverStatus status, const char** text);
  DriverStatus (*get_error_string)(DriverStatus status, const char** text);

  DriverStatus (*device_get_count)(int32_t* count);
  DriverStatus (*device_get)(DeviceOrdinal* device, int32_t index);
  DriverStatus (*device_get_name)(char* name, int32_t size, DeviceOrdinal device);
  DriverStatus (*device_get_attribute)(int32_t* value, int32_t attribute, DeviceOrdinal device);
  DriverStatus (*device_total_mem)(size_t* bytes, DeviceOrdinal device);
  DriverStatus (*device_primary_ctx_retain)(Context* context, DeviceOrdinal device);

  DriverStatus (*ctx_get_current)(Context* context);
  DriverStatus (*ctx_set_current)(Context context);
  DriverStatus (*ctx_get_device)(DeviceOrdinal* device);
  DriverStatus (*ctx_synchronize)();
  DriverStatus (*stream_synchronize)(Stream stream);
  DriverStatus (*stream_is_capturing)(Stream stream, int32_t* capture_status);

  DriverStatus (*library_load_data)(Library* library, const void* code, const int32_t* jit_options,
                                    void** jit_values, uint32_t num_jit_options,
                                    const int32_t* library_options, void** library_values,
                                    uint32_t num_library_options);
  DriverStatus (*library_get_kernel)(KernelHandle* kernel, Library library, const char* name);
  DriverStatus (*kernel_set_attribute)(int32_t attribute, int32_t value, KernelHandle kernel,
                                       DeviceOrdinal device);
  DriverStatus (*occupancy_max_active_blocks_per_multiprocessor)(int32_t* blocks,
                                                                 KernelHandle function,
                                                                 int32_t threads,
                                                                 size_t dynamic_shared_bytes);
  DriverStatus (*launch_kernel)(KernelHandle function, uint32_t grid_x, uint32_t grid_y,
                                uint32_t grid_z, uint32_t block_x, uint32_t block_y,
                                uint32_t block_z, uint32_t dynamic_shared_bytes, Stream stream,
                                void** parameters, void** extra);

  DriverStatus (*mem_alloc)(DevicePointer* pointer, size_t bytes);
  DriverStatus (*mem_free)(DevicePointer pointer);
  DriverStatus (*memcpy_h_to_d)(DevicePointer to, const void* from, size_t bytes);
  DriverStatus (*memcpy_d_to_h)(void* to, DevicePointer from, size_t bytes);
  DriverStatus (*mem_host_alloc)(void** pointer, size_t bytes, uint32_t flags);
  DriverStatus (*mem_host_get_device_pointer)(DevicePointer* device, void* host, uint32_t flags);

  // mlcc_emulator_use of tools/emulator; null of a real driver.
  void (*emulator_use)(const EmulatedUse* uses, int32_t count);

  int32_t version;  // 12040 is 12.4

  // "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string describe(DriverStatus status) const;
  // Throws Error with `what`, the kernel's or device's name and what was being done, the status,
  // and what to do about it.
  template <typename... Parts>
  void check(DriverStatus status, const Parts&... what) const {
    if (status != kDriverSuccess) fail(status, detail::join(what...));
  }
  // The same of what happens while code is loaded: throws LoadError, unless nothing else could run
  // on the device either.
  template <typename... Parts>
  void check_load(DriverStatus status, const Parts&... what) const {
    if (status != kDriverSuccess) fail_load(status, detail::join(what...));
  }

 private:
  [[noreturn]] void fail(DriverStatus status, const std::string& what) const;
  [[noreturn]] void fail_load(DriverStatus status, const std::string& what) const;
  std::string explain(DriverStatus status, const std::string& what) const;
};

// The least driver: from this version on kernels can be loaded without a context.
constexpr int32_t kLeastDriverVersion = 12000;

// Opens `path`, or libcuda.so.1 where that is empty, and initializes the driver. The reason tells
// apart: no library, a symbol that an old driver lacks, a driver that is too old, and what the
// driver itself says (no device, ...). Opened once per path, never closed.
Result<const DriverApi*> open_driver(const std::string& path);

struct DeviceInfo {
  int32_t index = 0;
  DeviceOrdinal ordinal = 0;
  std::string name;  // "NVIDIA H200"
  std::string arch;  // "sm_90"
  int32_t multiprocessors = 0;
  int32_t max_threads_per_block = 0;
  int64_t max_shared_bytes = 0;  // of a block, when asked for
  int64_t memory_bytes = 0;
  std::string str() const;  // "NVIDIA H200, sm_90, 132 multiprocessors, 139 GiB"
};

Result<DeviceInfo> query_device(const DriverApi& api, int32_t index);
int32_t count_devices(const DriverApi& api);

// While it lives this thread's context is one of device `index`: the thread's own if it is of that
// device, else the device's primary one, as torch and the CUDA runtime use it. A thread that had no
// context keeps it. `who` begins the message of an Error.
class DeviceScope {
 public:
  DeviceScope(const DriverApi& api, int32_t index, std::string_view who = "");
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;
  ~DeviceScope();

 private:
  void enter(int32_t index, DriverStatus status, Context previous, std::string_view who);

  const DriverApi& api_;
  Context previous_ = nullptr;  // to go back to
};

}  // namespace mlcc::codegen::cuda
