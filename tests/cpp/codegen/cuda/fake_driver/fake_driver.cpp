// A libcuda for tests: one kind of device, memory that is the host's, launches that are written
// down. With MLCC_FAKE_OLD_DRIVER it lacks what drivers before CUDA 12 lack. It is an NVRTC too,
// one that compiles nothing: what is loaded is not looked at.
#include "../fake_driver.h"

#include <cstdlib>
#include <cstring>
#include <deque>
#include <mutex>

#define FAKE_DRIVER_API extern "C" __attribute__((visibility("default")))

namespace {

using mlcc::codegen::cuda::FakeDriver;
using mlcc::codegen::cuda::FakeLaunch;
using Status = int32_t;

FakeDriver state;
thread_local void* context = nullptr;

struct FakeFunction {
  char name[64] = {};
};
[[maybe_unused]] std::mutex functions_mutex;
[[maybe_unused]] std::deque<FakeFunction> functions;  // handles stay where they are

}  // namespace

FAKE_DRIVER_API FakeDriver& fake_driver() { return state; }

FAKE_DRIVER_API Status cuInit(uint32_t) { return state.init_status; }
FAKE_DRIVER_API Status cuDriverGetVersion(int32_t* version) {
  *version = state.version;
  return 0;
}
FAKE_DRIVER_API Status cuGetErrorName(Status status, const char** text) {
  *text = status == 2     ? "CUDA_ERROR_OUT_OF_MEMORY"
          : status == 214 ? "CUDA_ERROR_ECC_UNCORRECTABLE"
          : status == 719 ? "CUDA_ERROR_LAUNCH_FAILED"
                          : "CUDA_ERROR_UNKNOWN";
  return 0;
}
FAKE_DRIVER_API Status cuGetErrorString(Status, const char** text) {
  *text = "as the test wants it";
  return 0;
}
FAKE_DRIVER_API Status cuDeviceGetCount(int32_t* count) {
  *count = state.num_devices;
  return 0;
}
FAKE_DRIVER_API Status cuDeviceGet(int32_t* device, int32_t index) {
  *device = index;
  return 0;
}
FAKE_DRIVER_API Status cuDeviceGetName(char* name, int32_t size, int32_t) {
  std::strncpy(name, "Fake GPU", static_cast<size_t>(size));
  return 0;
}
FAKE_DRIVER_API Status cuDeviceGetAttribute(int32_t* value, int32_t attribute, int32_t) {
  switch (attribute) {
  case 1: *value = 1024; break;
  case 16: *value = 10; break;
  case 75: *value = 9; break;
  case 76: *value = 0; break;
  case 97: *value = 227 * 1024; break;
  default: return 1;
  }
  return 0;
}
FAKE_DRIVER_API Status cuDeviceTotalMem_v2(size_t* bytes, int32_t) {
  *bytes = size_t{8} << 30;
  return 0;
}
FAKE_DRIVER_API Status cuDevicePrimaryCtxRetain(void** made, int32_t device) {
  ++state.num_primary_contexts;
  *made = reinterpret_cast<void*>(static_cast<intptr_t>(device) + 1);
  return 0;
}
FAKE_DRIVER_API Status cuCtxGetCurrent(void** current) {
  *current = context;
  return 0;
}
FAKE_DRIVER_API Status cuCtxSetCurrent(void* current) {
  context = current;
  return 0;
}
FAKE_DRIVER_API Status cuCtxGetDevice(int32_t* device) {
  if (context == nullptr) return 201;
  if (state.context_status != 0) return state.context_status;
  *device = static_cast<int32_t>(reinterpret_cast<intptr_t>(context) - 1);
  return 0;
}
FAKE_DRIVER_API Status cuCtxSynchronize() { return 0; }
FAKE_DRIVER_API Status cuStreamSynchronize(void*) { return 0; }
FAKE_DRIVER_API Status cuStreamIsCapturing(void*, int32_t* status) {
  *status = state.is_capturing;
  return 0;
}
#ifndef MLCC_FAKE_OLD_DRIVER
FAKE_DRIVER_API Status cuLibraryLoadData(void** library, const void* code, const int32_t*, void**,
                                         uint32_t, const int32_t*, void**, uint32_t) {
  if (state.load_status != 0) return state.load_status;
  ++state.num_loads;
  *library = const_cast<void*>(code);
  return 0;
}
FAKE_DRIVER_API Status cuLibraryGetKernel(void** kernel, void*, const char* name) {
  const std::lock_guard lock(functions_mutex);
  FakeFunction& function = functions.emplace_back();
  std::strncpy(function.name, name, sizeof(function.name) - 1);
  *kernel = &function;
  return 0;
}
#endif
FAKE_DRIVER_API Status cuKernelSetAttribute(int32_t, int32_t value, void*, int32_t) {
  state.shared_attribute = value;
  return 0;
}
FAKE_DRIVER_API Status cuOccupancyMaxActiveBlocksPerMultiprocessor(int32_t* blocks, void*, int32_t,
                                                                   size_t) {
  ++state.num_occupancy_calls;
  *blocks = state.blocks_per_multiprocessor;
  return 0;
}
FAKE_DRIVER_API Status cuLaunchKernel(void* function, uint32_t grid_x, uint32_t, uint32_t,
                                      uint32_t block_x, uint32_t, uint32_t, uint32_t shared_bytes,
                                      void* stream, void** parameters, void**) {
  if (state.launch_status != 0) return state.launch_status;
  FakeLaunch& launch = state.launches[state.num_launches++ % 16];
  launch = {};
  std::memcpy(launch.function, static_cast<FakeFunction*>(function)->name, sizeof(launch.function));
  launch.grid = grid_x;
  launch.block = block_x;
  launch.shared_bytes = shared_bytes;
  launch.stream = stream;
  launch.device = static_cast<int32_t>(reinterpret_cast<intptr_t>(context) - 1);
  for (int32_t i = 0; i < state.num_parameters; ++i)
    std::memcpy(&launch.parameters[i], parameters[i], sizeof(int64_t));
  if (state.failing_launch_code != 0) {
    auto* record = reinterpret_cast<int64_t*>(launch.parameters[state.num_parameters - 1]);
    record[0] = state.failing_launch_code;
    record[1] = 5;
    record[2] = 7;
    *reinterpret_cast<int64_t*>(record[3]) = 1;
  }
  return 0;
}
FAKE_DRIVER_API Status cuMemAlloc_v2(uint64_t* pointer, size_t bytes) {
  *pointer = reinterpret_cast<uint64_t>(std::malloc(bytes));
  return 0;
}
FAKE_DRIVER_API Status cuMemFree_v2(uint64_t pointer) {
  std::free(reinterpret_cast<void*>(pointer));
  return 0;
}
FAKE_DRIVER_API Status cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return 0;
}
FAKE_DRIVER_API Status cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<void*>(from), bytes);
  return 0;
}
FAKE_DRIVER_API Status cuMemHostAlloc(void** pointer, size_t bytes, uint32_t) {
  *pointer = std::calloc(1, bytes);
  return 0;
}
FAKE_DRIVER_API Status cuMemHostGetDevicePointer_v2(uint64_t* device, void* host, uint32_t) {
  *device = reinterpret_cast<uint64_t>(host);
  return 0;
}

FAKE_DRIVER_API const char* nvrtcGetErrorString(int32_t) { return "as the test wants it"; }
FAKE_DRIVER_API int32_t nvrtcVersion(int32_t* major, int32_t* minor) {
  *major = state.nvrtc_major;
  *minor = 0;
  return 0;
}
FAKE_DRIVER_API int32_t nvrtcGetNumSupportedArchs(int32_t* count) {
  *count = 1;
  return 0;
}
FAKE_DRIVER_API int32_t nvrtcGetSupportedArchs(int32_t* archs) {
  *archs = 90;
  return 0;
}
FAKE_DRIVER_API int32_t nvrtcCreateProgram(void** program, const char*, const char*, int32_t,
                                           const char* const*, const char* const*) {
  *program = &state;
  return 0;
}
FAKE_DRIVER_API int32_t nvrtcDestroyProgram(void**) { return 0; }
FAKE_DRIVER_API int32_t nvrtcCompileProgram(void*, int32_t, const char* const*) { return 0; }
namespace {
int32_t empty_size(size_t* bytes) {
  *bytes = 1;
  return 0;
}
int32_t empty_text(char* text) {
  *text = '\0';
  return 0;
}
}  // namespace
FAKE_DRIVER_API int32_t nvrtcGetProgramLogSize(void*, size_t* bytes) { return empty_size(bytes); }
FAKE_DRIVER_API int32_t nvrtcGetProgramLog(void*, char* log) { return empty_text(log); }
FAKE_DRIVER_API int32_t nvrtcGetCUBINSize(void*, size_t* bytes) { return empty_size(bytes); }
FAKE_DRIVER_API int32_t nvrtcGetCUBIN(void*, char* code) { return empty_text(code); }
FAKE_DRIVER_API int32_t nvrtcGetPTXSize(void*, size_t* bytes) { return empty_size(bytes); }
FAKE_DRIVER_API int32_t nvrtcGetPTX(void*, char* code) { return empty_text(code); }
