#include "codegen/cuda/nvrtc_api.h"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

namespace mlcc::codegen::cuda {
namespace {

namespace fs = std::filesystem;

// Newest first; older ones know no library of kernels that outlives a context.
constexpr std::array<std::pair<int32_t, const char*>, 2> kNames = {
    {{13, "libnvrtc.so.13"}, {12, "libnvrtc.so.12"}}};

std::vector<const char*> names_for(int32_t driver_version) {
  std::vector<const char*> names;
  for (const auto& [major, name] : kNames)
    if (driver_version == 0 || major <= driver_version / 1000) names.push_back(name);
  return names;
}
constexpr std::string_view kBuiltins = "libnvrtc-builtins.so.";
constexpr const char* kToolkit = "/usr/local/cuda/lib64";

std::string dl_fault(const std::string& path) {
  const char* why = dlerror();
  return why != nullptr ? why : path + ": cannot be opened";
}

// A libnvrtc that is opened by path does not find its second half, which it opens by name when it
// first compiles ("failed to open libnvrtc-builtins.so.13.0"), unless that is loaded already.
void open_builtins(const fs::path& folder) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error))
    if (entry.path().filename().string().starts_with(kBuiltins))
      dlopen(entry.path().c_str(), RTLD_NOW | RTLD_LOCAL);
}

struct OpenedLibrary {
  void* handle = nullptr;
  std::string path;
};

OpenedLibrary open_path(const fs::path& path, std::string& tried) {
  if (path.has_parent_path()) open_builtins(path.parent_path());
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) tried += "\n  " + dl_fault(path.string());
  return {handle, path.string()};
}

// Where a library lies that somebody has loaded.
fs::path path_of(void* handle, const char* name) {
  const link_map* map = nullptr;
  const bool is_known = dlinfo(handle, RTLD_DI_LINKMAP, static_cast<void*>(&map)) == 0;
  return is_known && map->l_name[0] != '\0' ? map->l_name : name;
}

OpenedLibrary search(const NvrtcPlaces& places, std::string& tried) {
  if (!places.path.empty()) return open_path(places.path, tried);
  const std::vector<const char*> names = names_for(places.driver_version);
  for (const char* name : names) {
    void* handle = dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (handle == nullptr) continue;
    const fs::path path = path_of(handle, name);
    if (path.has_parent_path()) open_builtins(path.parent_path());
    return {handle, path.string()};
  }
  std::vector<std::string> folders = places.folders;
  folders.emplace_back(kToolkit);
  for (const std::string& folder : folders) {
    for (const char* name : names) {
      const fs::path path = fs::path(folder) / name;
      std::error_code error;
      if (!fs::exists(path, error)) continue;
      if (OpenedLibrary opened = open_path(path, tried); opened.handle != nullptr) return opened;
    }
    tried += "\n  " + folder + ": none there";
  }
  for (const char* name : names)
    if (OpenedLibrary opened = open_path(name, tried); opened.handle != nullptr) return opened;
  return {};
}

std::string fill(NvrtcApi& api, void* library) {
  std::string missing;
  const auto take = [&]<typename Function>(Function*& function, const char* name) {
    function = reinterpret_cast<Function*>(dlsym(library, name));
    if (function == nullptr && missing.empty()) missing = name;
  };
  take(api.get_error_string, "nvrtcGetErrorString");
  take(api.version, "nvrtcVersion");
  take(api.get_num_supported_archs, "nvrtcGetNumSupportedArchs");
  take(api.get_supported_archs, "nvrtcGetSupportedArchs");
  take(api.create_program, "nvrtcCreateProgram");
  take(api.destroy_program, "nvrtcDestroyProgram");
  take(api.compile_program, "nvrtcCompileProgram");
  take(api.get_program_log_size, "nvrtcGetProgramLogSize");
  take(api.get_program_log, "nvrtcGetProgramLog");
  take(api.get_cubin_size, "nvrtcGetCUBINSize");
  take(api.get_cubin, "nvrtcGetCUBIN");
  take(api.get_ptx_size, "nvrtcGetPTXSize");
  take(api.get_ptx, "nvrtcGetPTX");
  return missing;
}

Result<const NvrtcApi*> describe(const OpenedLibrary& library) {
  auto api = std::make_unique<NvrtcApi>();
  api->path = library.path;
  if (const std::string missing = fill(*api, library.handle); !missing.empty())
    return unsupported("NVRTC ", library.path, " is too old or none: it lacks ", missing);
  int32_t major = 0, minor = 0, count = 0;
  NvrtcStatus status = api->version(&major, &minor);
  if (status == 0) status = api->get_num_supported_archs(&count);
  api->archs.resize(static_cast<size_t>(std::max(count, 0)));
  if (status == 0 && count > 0) status = api->get_supported_archs(api->archs.data());
  if (status != 0)
    return unsupported("NVRTC ", library.path, " cannot start: ", api->get_error_string(status));
  std::sort(api->archs.begin(), api->archs.end());
  api->version_number = major * 1000 + minor * 10;
  api->version_text = detail::join(major, ".", minor);
  return api.release();  // the library is never closed, nor is its table
}

}  // namespace

Result<const NvrtcApi*> open_nvrtc(const NvrtcPlaces& places) {
  static std::mutex* const mutex = new std::mutex;
  static auto* const opened = new std::map<void*, const NvrtcApi*>;  // by library
  const std::lock_guard lock(*mutex);
  std::string tried;
  const OpenedLibrary library = search(places, tried);
  const int32_t driver = places.driver_version;
  const std::string driver_text = detail::join("CUDA ", driver / 1000, ".", driver % 1000 / 10);
  if (library.handle == nullptr)
    return unsupported("no NVRTC", driver == 0 ? "" : " for a driver of " + driver_text, "; tried",
                       tried);
  const auto known = opened->find(library.handle);
  const Result<const NvrtcApi*> api =
      known != opened->end() ? Result<const NvrtcApi*>(known->second) : describe(library);
  if (!api) return api;
  opened->emplace(library.handle, *api);
  if (driver != 0 && (*api)->version_number / 1000 > driver / 1000)
    return unsupported("NVRTC ", (*api)->version_text, " from ", (*api)->path,
                       " makes code that a driver of ", driver_text,
                       " cannot load: update the driver, or let MLCC_NVRTC name an older NVRTC");
  return api;
}

}  // namespace mlcc::codegen::cuda
