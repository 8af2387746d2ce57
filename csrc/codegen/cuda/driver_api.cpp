#include "codegen/cuda/driver_api.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace mlcc::codegen::cuda {
namespace {

// Fills a table from a library; remembers the first name that is missing.
class Symbols {
 public:
  explicit Symbols(void* library) : library_(library) {}

  template <typename Function>
  void take(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library_, name));
    if (function == nullptr && missing_.empty()) missing_ = name;
  }
  const std::string& missing() const { return missing_; }

 private:
  void* library_;
  std::string missing_;
};

std::string fill(DriverApi& api, void* library) {
  Symbols symbols(library);
  symbols.take(api.init, "cuInit");
  symbols.take(api.driver_get_version, "cuDriverGetVersion");
  symbols.take(api.get_error_name, "cuGetErrorName");
  symbols.take(api.get_error_string, "cuGetErrorString");
  symbols.take(api.device_get_count, "cuDeviceGetCount");
  symbols.take(api.device_get, "cuDeviceGet");
  symbols.take(api.device_get_name, "cuDeviceGetName");
  symbols.take(api.device_get_attribute, "cuDeviceGetAttribute");
  symbols.take(api.device_total_mem, "cuDeviceTotalMem_v2");
  symbols.take(api.device_primary_ctx_retain, "cuDevicePrimaryCtxRetain");
  symbols.take(api.ctx_get_current, "cuCtxGetCurrent");
  symbols.take(api.ctx_set_current, "cuCtxSetCurrent");
  symbols.take(api.ctx_get_device, "cuCtxGetDevice");
  symbols.take(api.ctx_synchronize, "cuCtxSynchronize");
  symbols.take(api.stream_synchronize, "cuStreamSynchronize");
  symbols.take(api.stream_is_capturing, "cuStreamIsCapturing");
  symbols.take(api.library_load_data, "cuLibraryLoadData");
  symbols.take(api.library_get_kernel, "cuLibraryGetKernel");
  symbols.take(api.kernel_set_attribute, "cuKernelSetAttribute");
  symbols.take(api.occupancy_max_active_blocks_per_multiprocessor,
               "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  symbols.take(api.launch_kernel, "cuLaunchKernel");
  symbols.take(api.mem_alloc, "cuMemAlloc_v2");
  symbols.take(api.mem_free, "cuMemFree_v2");
  symbols.take(api.memcpy_h_to_d, "cuMemcpyHtoD_v2");
  symbols.take(api.memcpy_d_to_h, "cuMemcpyDtoH_v2");
  symbols.take(api.mem_host_alloc, "cuMemHostAlloc");
  symbols.take(api.mem_host_get_device_pointer, "cuMemHostGetDevicePointer_v2");
  api.emulator_use =
      reinterpret_cast<decltype(api.emulator_use)>(dlsym(library, "mlcc_emulator_use"));
  return symbols.missing();
}

std::string version_text(int32_t version) {
  return detail::join(version / 1000, ".", version % 1000 / 10);
}

// What keeps the version from being enough, if that can be found out; else empty.
std::string version_fault(const DriverApi& api) {
  if (api.driver_get_version == nullptr) return "";
  int32_t version = 0;
  if (api.driver_get_version(&version) != kDriverSuccess || version >= kLeastDriverVersion)
    return "";
  return detail::join("it is for CUDA ", version_text(version), ", expected ",
                      version_text(kLeastDriverVersion), " or newer");
}

Result<const DriverApi*> open(const std::string& path) {
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return unsupported("no CUDA driver: ", why != nullptr ? why : path);
  }
  auto api = std::make_unique<DriverApi>();
  const std::string missing = fill(*api, library);
  if (const std::string fault = version_fault(*api); !fault.empty())
    return unsupported("CUDA driver ", path, " is too old: ", fault);
  if (!missing.empty())
    return unsupported("CUDA driver ", path, " is too old or none: it lacks ", missing);
  const DriverStatus status = api->init(0);
  if (status == kDriverNoDevice) return unsupported("CUDA driver ", path, ": no device is there");
  if (status != kDriverSuccess)
    return unsupported("CUDA driver ", path, " cannot start: ", api->describe(status));
  (void)api->driver_get_version(&api->version);
  return api.release();  // the library is never closed, nor is its table
}

}  // namespace

std::string DriverApi::describe(DriverStatus status) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (get_error_name(status, &name) != kDriverSuccess || name == nullptr)
    return detail::join("CUDA error ", status);
  if (get_error_string(status, &text) != kDriverSuccess || text == nullptr) return name;
  return detail::join(name, " (", text, ")");
}

bool is_kernel_fault(DriverStatus status) {
  // CUDA_ERROR_ILLEGAL_ADDRESS, LAUNCH_TIMEOUT, ASSERT, and HARDWARE_STACK_ERROR to LAUNCH_FAILED
  return status == 700 || status == 702 || status == 710 || (status >= 714 && status <= 719);
}

bool is_device_fault(DriverStatus status) {
  // CUDA_ERROR_DEVICE_UNAVAILABLE, ECC_UNCORRECTABLE, NVLINK_UNCORRECTABLE, CONTAINED,
  // CONTEXT_IS_DESTROYED, SYSTEM_NOT_READY
  static constexpr std::array kFaults = {46, 214, 220, 226, 709, 802};
  return std::find(kFaults.begin(), kFaults.end(), status) != kFaults.end();
}

std::string DriverApi::explain(DriverStatus status, const std::string& what) const {
  std::string text = detail::join(what, ": ", describe(status));
  if (status == kDriverOutOfMemory)
    return text + "; free memory of the device, or give smaller batches";
  if (!is_kernel_fault(status) && !is_device_fault(status)) return text;
  // The first one says most: all calls fail after it.
  static std::mutex* const mutex = new std::mutex;
  static auto* const firsts = new std::map<const DriverApi*, std::string>;
  const std::lock_guard lock(*mutex);
  const auto [first, is_new] = firsts->try_emplace(this, text);
  if (!is_new) text += "; the GPU failed before, at: " + first->second;
  text += is_kernel_fault(status)
              ? "; a kernel did what it may not, this one or one before it, since the device runs "
                "behind the host: CUDA_LAUNCH_BLOCKING=1 in the environment tells which"
              : "; the device is lost: nvidia-smi and the kernel's log (dmesg, Xid) tell why";
  return text +
         ". This process cannot use the GPU any more and wants to be started again; what runs "
         "on the CPU is not touched";
}

void DriverApi::fail(DriverStatus status, const std::string& what) const {
  throw Error(explain(status, what));
}

void DriverApi::fail_load(DriverStatus status, const std::string& what) const {
  if (is_kernel_fault(status) || is_device_fault(status)) fail(status, what);
  throw LoadError(explain(status, what));
}

Result<const DriverApi*> open_driver(const std::string& path) {
  // Only successes are kept: what is missing now may be there at the next call.
  static std::mutex* const mutex = new std::mutex;
  static auto* const opened = new std::map<std::string, const DriverApi*>;
  const std::string name = path.empty() ? "libcuda.so.1" : path;
  const std::lock_guard lock(*mutex);
  if (const auto it = opened->find(name); it != opened->end()) return it->second;
  Result<const DriverApi*> api = open(name);
  if (api) opened->emplace(name, *api);
  return api;
}

std::string DeviceInfo::str() const {
  return detail::join(name, ", ", arch, ", ", multiprocessors, " multiprocessors, ",
                      memory_bytes >> 30, " GiB");
}

int32_t count_devices(const DriverApi& api) {
  int32_t count = 0;
  return api.device_get_count(&count) == kDriverSuccess ? count : 0;
}

Result<DeviceInfo> query_device(const DriverApi& api, int32_t index) {
  const int32_t count = count_devices(api);
  if (index < 0 || index >= count)
    return unsupported("device cuda:", index, ": this machine has ", count, " such devices");
  DeviceInfo info;
  info.index = index;
  const auto check = [&](DriverStatus status) {
    api.check_load(status, "device cuda:", index, ": asking for its properties");
  };
  check(api.device_get(&info.ordinal, index));
  const auto attribute = [&](int32_t which) {
    int32_t value = 0;
    check(api.device_get_attribute(&value, which, info.ordinal));
    return value;
  };
  std::array<char, 128> name{};
  check(api.device_get_name(name.data(), static_cast<int32_t>(name.size()) - 1, info.ordinal));
  size_t bytes = 0;
  check(api.device_total_mem(&bytes, info.ordinal));
  info.name = name.data();
  info.arch =
      detail::join("sm_", attribute(kComputeCapabilityMajor), attribute(kComputeCapabilityMinor));
  info.multiprocessors = attribute(kMultiprocessorCount);
  info.max_threads_per_block = attribute(kMaxThreadsPerBlock);
  info.max_shared_bytes = attribute(kMaxSharedMemoryPerBlockOptin);
  info.memory_bytes = static_cast<int64_t>(bytes);
  return info;
}

DeviceScope::DeviceScope(const DriverApi& api, int32_t index, std::string_view who) : api_(api) {
  // A thread of our own has no context: asking for its device would be an error, which
  // compute-sanitizer tells.
  Context current = nullptr;
  DriverStatus status = api.ctx_get_current(&current);
  DeviceOrdinal device = -1;
  if (status == kDriverSuccess && current != nullptr) status = api.ctx_get_device(&device);
  if (status == kDriverInvalidContext) {  // nothing to go back to
    status = kDriverSuccess;
    current = nullptr;
  }
  // The driver's ordinals are the indices.
  if (status != kDriverSuccess || device != index) enter(index, status, current, who);
}

void DeviceScope::enter(int32_t index, DriverStatus status, Context previous,
                        std::string_view who) {
  const auto check = [&](DriverStatus result, std::string_view what) {
    api_.check_load(result, who, who.empty() ? "" : ": ", "device cuda:", index, what);
  };
  check(status, ": asking for the current device");
  DeviceOrdinal device = 0;
  Context context = nullptr;
  check(api_.device_get(&device, index), "");
  check(api_.device_primary_ctx_retain(&context, device), ": making its context");
  check(api_.ctx_set_current(context), ": entering its context");
  previous_ = previous;
}

DeviceScope::~DeviceScope() {
  if (previous_ != nullptr) (void)api_.ctx_set_current(previous_);
}

}  // namespace mlcc::codegen::cuda
