#include "driver/session.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "codegen/cpu/client.h"
#include "codegen/cuda/backend.h"
#include "codegen/cuda/loader.h"
#include "codegen/cuda/nvrtc_api.h"
#include "runtime/block_pool.h"
#include "runtime/kept_values.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

// What the process shares; made at first use, never destroyed, since code may run until the very
// end.
struct Session {
  std::mutex mutex;
  std::string llvm_library;
  std::vector<std::string> nvrtc_folders;
  std::map<std::string, DeviceBackend> backends;                  // by options.cpu
  std::map<std::string, DeviceBackend> cuda_backends;             // by what cuda_key says
  std::map<std::string, std::shared_ptr<runtime::Store>> stores;  // by folder
  runtime::KernelCache cache;
  bool told_of_no_folder = false;
};

Session& session() {
  static Session* const state = new Session;
  return *state;
}

// Of the features in LLVM's names those that add instructions which it may put into our code.
// A package's runtime knows them too (package/targets.cpp).
constexpr std::array kInstructionSets =
    std::to_array<std::string_view>({"sse3",       "ssse3",      "sse4.1",       "sse4.2",
                                     "sse4a",      "avx",        "avx2",         "fma",
                                     "fma4",       "f16c",       "xop",          "tbm",
                                     "bmi",        "bmi2",       "lzcnt",        "popcnt",
                                     "movbe",      "adx",        "avxvnni",      "avx512f",
                                     "avx512cd",   "avx512bw",   "avx512dq",     "avx512vl",
                                     "avx512ifma", "avx512vbmi", "avx512vbmi2",  "avx512vnni",
                                     "avx512bf16", "avx512fp16", "avx512bitalg", "avx512vpopcntdq",
                                     "gfni",       "vaes",       "vpclmulqdq",   "avx10.1-512",
                                     "amx-tile",   "amx-bf16",   "amx-int8",     "neon",
                                     "dotprod",    "fp16fml",    "bf16",         "i8mm"});

// One of these is a name for others.
constexpr std::string_view kUmbrella = "avx10.1-512";

bool has_feature(const codegen::Target& target, std::string_view name) {
  return ("," + target.features + ",").find(",+" + std::string(name) + ",") != std::string::npos;
}

// Code for a CPU that can more than this one would end the process.
std::string why_not_here(const codegen::Target& target, const codegen::Target& host) {
  for (std::string_view name : kInstructionSets)
    if (has_feature(target, name) && !has_feature(host, name))
      return detail::join("option cpu: ", target.cpu, " has ", name, ", which this ", host.cpu,
                          " lacks");
  return "";
}

constexpr std::string_view kEmulate = "emulate";

std::string cuda_key(const Options& options, int32_t index) {
  return detail::join(options.gpu, "\n", options.libcuda, "\n", options.nvrtc, "\n", index);
}

std::string emulator_library(const std::string& llvm_library) {
  return (std::filesystem::path(llvm_library).parent_path() / "libmlcc_emulator.so").string();
}

Result<DeviceBackend> open_cuda(const std::string& libcuda, codegen::cuda::NvrtcPlaces places,
                                int32_t index) {
  const Result<const codegen::cuda::DriverApi*> driver = codegen::cuda::open_driver(libcuda);
  if (!driver) return Unsupported{driver.reason()};
  const Result<codegen::cuda::DeviceInfo> device = codegen::cuda::query_device(**driver, index);
  if (!device) return Unsupported{device.reason()};
  places.driver_version = (*driver)->version;
  const Result<const codegen::cuda::NvrtcApi*> nvrtc = codegen::cuda::open_nvrtc(places);
  if (!nvrtc) return Unsupported{nvrtc.reason()};
  Result<std::shared_ptr<codegen::Backend>> backend =
      codegen::cuda::make_backend(**nvrtc, {.arch = device->arch,
                                            .max_shared_bytes = device->max_shared_bytes,
                                            .driver_version = (*driver)->version});
  if (!backend) return Unsupported{backend.reason()};
  return DeviceBackend{
      std::move(backend).value(), codegen::cuda::make_loader(**driver, *device), *driver,
      detail::join(device->str(), "; NVRTC ", (*nvrtc)->version_text, " from ", (*nvrtc)->path)};
}

}  // namespace

void set_llvm_library(const std::string& path) {
  const std::lock_guard<std::mutex> lock(session().mutex);
  session().llvm_library = path;
}

std::vector<std::string> needed_features(const codegen::Target& target) {
  std::vector<std::string> needed;
  for (std::string_view name : kInstructionSets)
    if (name != kUmbrella && has_feature(target, name)) needed.emplace_back(name);
  std::sort(needed.begin(), needed.end());
  return needed;
}

const DeviceBackend& cpu_backend(const Options& options) {
  Session& state = session();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.backends.find(options.cpu);
  if (found != state.backends.end()) return found->second;
  Result<std::shared_ptr<codegen::Backend>> backend =
      codegen::cpu::open_cpu_backend(state.llvm_library, options.cpu);
  MLCC_USER_CHECK(backend, "cpu backend: ", backend.reason());
  std::string cannot_run;
  if (!options.cpu.empty()) {
    const auto host = codegen::cpu::open_cpu_backend(state.llvm_library, "");
    MLCC_USER_CHECK(host, "cpu backend: ", host.reason());
    cannot_run = why_not_here((*backend)->target(), (*host)->target());
  }
  Result<std::shared_ptr<runtime::ObjectLoader>> loader =
      codegen::cpu::open_object_loader(state.llvm_library);
  MLCC_USER_CHECK(loader, "cpu backend: ", loader.reason());
  return state.backends[options.cpu] = {
             std::move(backend).value(), std::move(loader).value(), nullptr, {}, cannot_run};
}

void set_nvrtc_folders(const std::vector<std::string>& folders) {
  const std::lock_guard<std::mutex> lock(session().mutex);
  session().nvrtc_folders = folders;
}

bool emulates_gpu(const Options& options) {
  MLCC_USER_CHECK(options.gpu.empty() || options.gpu == "off" || options.gpu == kEmulate,
                  "option gpu: found '", options.gpu, "', expected off, emulate or nothing");
  return options.gpu == kEmulate;
}

Result<const DeviceBackend*> find_cuda_backend(const Options& options, int32_t index) {
  const bool is_emulated = emulates_gpu(options);
  if (options.gpu == "off") return unsupported("option gpu is off");
  Session& state = session();
  std::unique_lock<std::mutex> lock(state.mutex);
  const std::string key = cuda_key(options, index);
  if (const auto found = state.cuda_backends.find(key); found != state.cuda_backends.end())
    return &found->second;
  std::string libcuda = options.libcuda;
  codegen::cuda::NvrtcPlaces places{options.nvrtc, state.nvrtc_folders};
  if (is_emulated) {
    libcuda = emulator_library(state.llvm_library);
    if (!std::filesystem::exists(libcuda))
      return unsupported("option gpu: emulate: there is no ", libcuda);
    places = {libcuda, {}};
  }
  Result<DeviceBackend> opened = open_cuda(libcuda, std::move(places), index);
  if (!opened) return Unsupported{opened.reason()};
  const DeviceBackend& kept = state.cuda_backends[key] = std::move(opened).value();
  lock.unlock();  // a log sink may wait for a thread that waits for this lock
  if (is_emulated && !(options.libcuda.empty() && options.nvrtc.empty()))
    log_warning(LogChannel::kKernels, "options libcuda and nvrtc mean nothing to an emulated GPU");
  log(LogChannel::kKernels, "device cuda:", index, ": ", kept.description);
  return &kept;
}

const DeviceBackend& cuda_backend(const Options& options, int32_t index) {
  const Result<const DeviceBackend*> found = find_cuda_backend(options, index);
  MLCC_USER_CHECK(found, "cuda backend: ", found.reason());
  return **found;
}

const DeviceBackend& backend_for(const Options& options, const Device& device) {
  switch (device.kind) {
  case DeviceKind::kCpu:
    return emulates_gpu(options) ? cuda_backend(options) : cpu_backend(options);
  case DeviceKind::kCuda: return cuda_backend(options, device.index);
  }
  MLCC_UNREACHABLE("device kind ", static_cast<int>(device.kind));
}

Result<std::shared_ptr<codegen::Backend>> open_cuda_compiler(const Options& options) {
  codegen::cuda::NvrtcPlaces places{options.nvrtc, {}};
  {
    const std::lock_guard<std::mutex> lock(session().mutex);
    places.folders = session().nvrtc_folders;
  }
  const Result<const codegen::cuda::NvrtcApi*> nvrtc = codegen::cuda::open_nvrtc(places);
  if (!nvrtc) return Unsupported{nvrtc.reason()};
  return codegen::cuda::make_backend(**nvrtc, {.arch = options.cuda_arch});
}

void apply_memory_options(const Options& options) {
  runtime::BlockPool::process().set_idle_limit(bytes_of_mebibytes(options.idle_memory_mb));
  runtime::KeptValues::process().set_limit(
      options.pack_mb < 0 ? -1 : bytes_of_mebibytes(options.pack_mb));
}

runtime::KernelCache& kernel_cache() { return session().cache; }

std::shared_ptr<runtime::Store> store(const Options& options) {
  const std::string folder = options.cache_directory();
  if (options.cache_size_mb <= 0) return nullptr;
  Session& state = session();
  const std::lock_guard<std::mutex> lock(state.mutex);
  if (folder.empty()) {
    if (!std::exchange(state.told_of_no_folder, true))
      log_warning(LogChannel::kCache, "no disk store: none of MLCC_CACHE_DIR, XDG_CACHE_HOME and "
                                      "HOME is set");
    return nullptr;
  }
  std::shared_ptr<runtime::Store>& store = state.stores[folder];
  const int64_t bytes = options.cache_size_mb << 20;
  if (store == nullptr)
    store = std::make_shared<runtime::Store>(folder, bytes);
  else
    store->set_max_bytes(bytes);
  return store;
}

}  // namespace mlcc::driver
