// The driver's C interface: libraries, modules, functions and launches.
#include <algorithm>
#include <cstdio>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include "cuda_api.h"
#include "driver.h"

namespace mlcc_emulator {
namespace {

struct State {
  std::mutex mutex;
  std::unordered_set<CUlibrary> libraries;
  std::unordered_set<CUmodule> modules;
  std::unordered_set<CUkernel> kernels;
  std::unordered_set<CUfunction> functions;  // of modules, and those inside of kernels
};

// Never destroyed: calls may come while the process ends.
State& state() {
  static State* state = new State;
  return *state;
}

// A refused launch, with its reason for mlcc_emulator_last_fault.
CUresult refuse(const CUfunc_st& function, CUresult result, const char* pattern, auto... numbers) {
  char text[200];
  std::snprintf(text, sizeof text, pattern, numbers...);
  set_last_fault(std::string(function.entry->name) + ": " + text);
  return result;
}

// Shared variables of a program belong to all its kernels: known for one kernel only if it is
// alone.
int static_shared_of(const CUfunc_st& function) {
  const Program& program = function.module->program();
  return program.entry_count == 1 ? static_cast<int>(program.shared_end - program.shared_begin) : 0;
}

int max_threads_of(const CUfunc_st& function) {
  const int bound = static_cast<int>(function.entry->max_threads);
  return bound > 0 ? std::min(bound, kMaxThreadsPerBlock) : kMaxThreadsPerBlock;
}

CUresult load(const void* image, std::shared_ptr<Module>& module) {
  if (const int failure = injected_failure(Failure::kLoad)) return static_cast<CUresult>(failure);
  if (!image) return CUDA_ERROR_INVALID_VALUE;
  return Module::load(image, static_cast<int>(settings().arch), program_api(), module);
}

CUresult set_attribute(CUfunc_st& function, CUfunction_attribute attribute, int value) {
  if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) return CUDA_SUCCESS;
  if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) return CUDA_ERROR_INVALID_VALUE;
  if (value < 0 || value > kSharedPerBlockOptin - static_shared_of(function))
    return refuse(function, CUDA_ERROR_INVALID_VALUE,
                  "%d bytes of dynamic shared memory; at most %d", value,
                  kSharedPerBlockOptin - static_shared_of(function));
  function.max_dynamic_shared = value;
  return CUDA_SUCCESS;
}

CUresult get_attribute(const CUfunc_st& function, CUfunction_attribute attribute, int* value) {
  if (!value) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = max_threads_of(function); break;
  case CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES: *value = static_shared_of(function); break;
  case CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES:
  case CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES:
  case CU_FUNC_ATTRIBUTE_CACHE_MODE_CA: *value = 0; break;
  case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = kRegistersPerThread; break;
  case CU_FUNC_ATTRIBUTE_PTX_VERSION:
  case CU_FUNC_ATTRIBUTE_BINARY_VERSION: *value = function.module->program().arch; break;
  case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = function.max_dynamic_shared; break;
  case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = -1; break;
  default: return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

CUresult check_launch(const CUfunc_st& function, const CUlaunchConfig& config, void** parameters) {
  constexpr CUresult invalid = CUDA_ERROR_INVALID_VALUE;
  const auto [gx, gy, gz, bx, by, bz, shared, stream, attributes, attribute_count] = config;
  if (gx == 0 || gy == 0 || gz == 0 || gx > kMaxGridX || gy > kMaxGridYZ || gz > kMaxGridYZ)
    return refuse(function, invalid, "grid (%u, %u, %u) is empty or above (%u, %u, %u)", gx, gy, gz,
                  kMaxGridX, kMaxGridYZ, kMaxGridYZ);
  if (bx == 0 || by == 0 || bz == 0 || bx > 1024 || by > 1024 || bz > kMaxBlockZ ||
      bx * by * bz > kMaxThreadsPerBlock)
    return refuse(function, invalid, "block (%u, %u, %u) is empty or above %d threads", bx, by, bz,
                  kMaxThreadsPerBlock);
  if (bx * by * bz > static_cast<unsigned>(max_threads_of(function)))
    return refuse(function, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
                  "%u threads per block; __launch_bounds__ allows %d", bx * by * bz,
                  max_threads_of(function));
  if (shared > static_cast<unsigned>(function.max_dynamic_shared))
    return refuse(function, invalid, "%u bytes of dynamic shared memory; %d are allowed", shared,
                  function.max_dynamic_shared);
  for (unsigned i = 0; i < attribute_count; ++i)
    if (attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      return refuse(function, CUDA_ERROR_NOT_SUPPORTED, "clusters are not emulated");
  const unsigned count = function.entry->parameter_count;
  if (count > 0 && !parameters) return refuse(function, invalid, "no parameters; %u needed", count);
  for (unsigned i = 0; i < count; ++i)
    if (!parameters[i]) return refuse(function, invalid, "parameter %u is null", i);
  return CUDA_SUCCESS;
}

// Copies of a launch's parameters.
class Parameters {
 public:
  Parameters(const Entry& entry, void** parameters) {
    for (unsigned i = 0; i < entry.parameter_count; ++i) {
      const auto* bytes = static_cast<const unsigned char*>(parameters[i]);
      values_.emplace_back(bytes, bytes + entry.parameter_bytes[i]);
    }
  }

  std::vector<void*> pointers() {
    std::vector<void*> pointers;
    pointers.reserve(values_.size());
    for (std::vector<unsigned char>& value : values_) pointers.push_back(value.data());
    return pointers;
  }

 private:
  std::vector<std::vector<unsigned char>> values_;
};

CUresult launch(CUfunction handle, const CUlaunchConfig& config, void** parameters, void** extra) {
  if (const CUresult error = need_context()) return error;
  const CUfunc_st* function = find_function(handle, true);
  if (!function || !is_stream(config.stream)) return CUDA_ERROR_INVALID_HANDLE;
  if (extra) return CUDA_ERROR_NOT_SUPPORTED;
  if (const CUresult error = check_launch(*function, config, parameters)) return error;
  if (const int failure = injected_failure(Failure::kLaunch))
    return note_fault(static_cast<CUresult>(failure));
  Launch launch = {function->module,
                   function->entry,
                   {config.grid_x, config.grid_y, config.grid_z},
                   {config.block_x, config.block_y, config.block_z},
                   config.shared_bytes,
                   config.stream,
                   false};
  if (!is_captured(config.stream))
    return submit(config.stream, [&] { return note_fault(run_launch(launch, parameters)); });
  launch.from_graph = true;
  return submit(config.stream, [launch, copies = Parameters(*launch.entry, parameters)]() mutable {
    return note_fault(run_launch(launch, copies.pointers().data()));
  });
}

}  // namespace

CUfunc_st* find_function(CUfunction handle, bool accepts_kernel) {
  std::lock_guard lock(state().mutex);
  if (state().functions.contains(handle)) return handle;
  const auto kernel = reinterpret_cast<CUkernel>(handle);
  if (accepts_kernel && state().kernels.contains(kernel)) return &kernel->function;
  return nullptr;
}

}  // namespace mlcc_emulator

using namespace mlcc_emulator;  // of this file's own namespace: what follows is its C face

extern "C" {

CUresult cuLibraryLoadData(CUlibrary* library, const void* image, int*, void**, unsigned, int*,
                           void**, unsigned) {
  if (const CUresult error = need_initialized()) return error;
  if (const CUresult error = forbid_in_captures()) return error;
  if (!library) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUlib_st>();
  if (const CUresult error = load(image, made->module)) return error;
  std::lock_guard lock(state().mutex);
  *library = made.release();
  state().libraries.insert(*library);
  return CUDA_SUCCESS;
}

CUresult cuLibraryUnload(CUlibrary library) {
  if (const CUresult error = forbid_in_captures()) return error;
  std::lock_guard lock(state().mutex);
  if (state().libraries.erase(library) == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [name, kernel] : library->kernels) {
    state().kernels.erase(kernel.get());
    state().functions.erase(&kernel->function);
  }
  delete library;
  return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  if (!kernel || !name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!state().libraries.contains(library)) return CUDA_ERROR_INVALID_HANDLE;
  const Entry* entry = library->module->find(name);
  if (!entry) return CUDA_ERROR_NOT_FOUND;
  std::unique_ptr<CUkern_st>& made = library->kernels[name];
  if (!made) made.reset(new CUkern_st{0, {library->module, entry}});
  *kernel = made.get();
  state().kernels.insert(*kernel);
  return CUDA_SUCCESS;
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  if (const CUresult error = need_context()) return error;
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!state().kernels.contains(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  *function = &kernel->function;
  state().functions.insert(*function);
  return CUDA_SUCCESS;
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice device) {
  if (const CUresult error = forbid_in_captures()) return error;
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(state().mutex);
  if (!state().kernels.contains(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return set_attribute(kernel->function, attribute, value);
}

CUresult cuKernelGetAttribute(int* value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice device) {
  if (!is_device(device)) return CUDA_ERROR_INVALID_DEVICE;
  std::lock_guard lock(state().mutex);
  if (!state().kernels.contains(kernel)) return CUDA_ERROR_INVALID_HANDLE;
  return get_attribute(kernel->function, attribute, value);
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (const CUresult error = need_context_outside_captures()) return error;
  if (!module) return CUDA_ERROR_INVALID_VALUE;
  auto made = std::make_unique<CUmod_st>();
  if (const CUresult error = load(image, made->module)) return error;
  std::lock_guard lock(state().mutex);
  *module = made.release();
  state().modules.insert(*module);
  return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
  if (const CUresult error = need_context_outside_captures()) return error;
  std::lock_guard lock(state().mutex);
  if (state().modules.erase(module) == 0) return CUDA_ERROR_INVALID_HANDLE;
  for (const auto& [name, function] : module->functions) state().functions.erase(function.get());
  delete module;
  return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  if (const CUresult error = need_context()) return error;
  if (!function || !name) return CUDA_ERROR_INVALID_VALUE;
  std::lock_guard lock(state().mutex);
  if (!state().modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
  const Entry* entry = module->module->find(name);
  if (!entry) return CUDA_ERROR_NOT_FOUND;
  std::unique_ptr<CUfunc_st>& made = module->functions[name];
  if (!made) made.reset(new CUfunc_st{module->module, entry});
  *function = made.get();
  state().functions.insert(*function);
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction handle) {
  if (const CUresult error = need_context()) return error;
  const CUfunc_st* function = find_function(handle, false);
  return function ? get_attribute(*function, attribute, value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetAttribute(CUfunction handle, CUfunction_attribute attribute, int value) {
  if (const CUresult error = need_context_outside_captures()) return error;
  CUfunc_st* function = find_function(handle, false);
  return function ? set_attribute(*function, attribute, value) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction handle, int threads,
                                                     size_t dynamic_shared) {
  if (const CUresult error = need_context()) return error;
  const CUfunc_st* function = find_function(handle, true);
  if (!function) return CUDA_ERROR_INVALID_HANDLE;
  if (!blocks || threads <= 0) return CUDA_ERROR_INVALID_VALUE;
  const int warps = (threads + kWarpSize - 1) / kWarpSize;
  const int shared =
      static_cast<int>(dynamic_shared) + static_shared_of(*function) + kReservedSharedPerBlock;
  *blocks = 0;
  if (threads <= max_threads_of(*function))
    *blocks = std::min({kBlocksPerMultiprocessor, kThreadsPerMultiprocessor / (warps * kWarpSize),
                        kRegistersPerMultiprocessor / (warps * kWarpSize * kRegistersPerThread),
                        kSharedPerMultiprocessor / shared});
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                        unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                        CUstream stream, void** parameters, void** extra) {
  const CUlaunchConfig config = {grid_x,  grid_y,       grid_z, block_x, block_y,
                                 block_z, shared_bytes, stream, nullptr, 0};
  return launch(function, config, parameters, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function, void** parameters,
                          void** extra) {
  if (!config || (config->attribute_count > 0 && !config->attributes))
    return CUDA_ERROR_INVALID_VALUE;
  return launch(function, *config, parameters, extra);
}

}  // extern "C"
