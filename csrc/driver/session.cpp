#include "driver/session.h"

#include <array>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include "codegen/cpu/client.h"
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
  std::map<std::string, CpuBackend> backends;                     // by options.cpu
  std::map<std::string, std::shared_ptr<runtime::Store>> stores;  // by folder
  runtime::KernelCache cache;
  bool told_of_no_folder = false;
};

Session& session() {
  static Session* const state = new Session;
  return *state;
}

// Of the features in LLVM's names those that add instructions which it may put into our code.
constexpr std::array kInstructionSets =
    std::to_array<std::string_view>({"sse3",       "ssse3",      "sse4.1",       "sse4.2",
                                     "sse4a",      "avx",        "avx2",         "fma",
                                     "fma4",       "f16c",       "xop",          "tbm",
                                     "bmi",        "bmi2",       "lzcnt",        "popcnt",
                                     "movbe",      "adx",        "avxvnni",      "avx512f",
                                     "avx512cd",   "avx512bw",   "avx512dq",     "avx512vl",
                                     "avx512ifma", "avx512vbmi", "avx512vbmi2",  "avx512vnni",
                                     "avx512bf16", "avx512fp16", "avx512bitalg", "avx512vpopcntdq",
                                     "gfni",       "vaes",       "vpclmulqdq",   "avx10.1-512"});

bool has_feature(const codegen::Target& target, std::string_view name) {
  return ("," + target.features + ",").find(",+" + std::string(name) + ",") != std::string::npos;
}

// Code for a CPU that can more than this one would end the process.
void check_runs_here(const codegen::Target& target, const codegen::Target& host) {
  for (std::string_view name : kInstructionSets)
    MLCC_USER_CHECK(!has_feature(target, name) || has_feature(host, name),
                    "option cpu: ", target.cpu, " has ", name, ", which this ", host.cpu, " lacks");
}

}  // namespace

void set_llvm_library(const std::string& path) {
  const std::lock_guard<std::mutex> lock(session().mutex);
  session().llvm_library = path;
}

void set_nvrtc_folders(const std::vector<std::string>& folders) {
  const std::lock_guard<std::mutex> lock(session().mutex);
  session().nvrtc_folders = folders;
}

Result<const CpuBackend*> find_cuda_backend(const Options&, int32_t) {
  return unsupported("this build has no CUDA backend");
}

const CpuBackend& cpu_backend(const Options& options) {
  Session& state = session();
  const std::lock_guard<std::mutex> lock(state.mutex);
  const auto found = state.backends.find(options.cpu);
  if (found != state.backends.end()) return found->second;
  Result<std::shared_ptr<codegen::Backend>> backend =
      codegen::cpu::open_cpu_backend(state.llvm_library, options.cpu);
  MLCC_USER_CHECK(backend, "cpu backend: ", backend.reason());
  if (!options.cpu.empty()) {
    const auto host = codegen::cpu::open_cpu_backend(state.llvm_library, "");
    MLCC_USER_CHECK(host, "cpu backend: ", host.reason());
    check_runs_here((*backend)->target(), (*host)->target());
  }
  Result<std::shared_ptr<runtime::ObjectLoader>> loader =
      codegen::cpu::open_object_loader(state.llvm_library);
  MLCC_USER_CHECK(loader, "cpu backend: ", loader.reason());
  return state.backends[options.cpu] = {std::move(backend).value(), std::move(loader).value()};
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
