// A copy of the fake libcuda of its own for each test: a library's state lives as long as the
// process.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <string>

#include "codegen/cuda/driver_api.h"
#include "codegen/cuda/nvrtc_api.h"
#include "fake_driver.h"

namespace mlcc::codegen::cuda {

class FakeLibrary {
 public:
  explicit FakeLibrary(const std::string& original = MLCC_FAKE_CUDA) {
    std::string pattern = std::filesystem::temp_directory_path() / "mlcc-cuda-XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
    path_ = folder_ + "/libfake_cuda.so";
    std::filesystem::copy_file(original, path_);
    void* library = dlopen(path_.c_str(), RTLD_NOW | RTLD_LOCAL);
    const auto function = reinterpret_cast<FakeDriverFunction>(dlsym(library, "fake_driver"));
    state_ = &function();
  }
  FakeLibrary(const FakeLibrary&) = delete;
  FakeLibrary& operator=(const FakeLibrary&) = delete;
  ~FakeLibrary() { std::filesystem::remove_all(folder_); }

  const std::string& path() const { return path_; }
  FakeDriver& state() { return *state_; }
  const DriverApi& api() const { return *open_driver(path_).value(); }

 private:
  std::string folder_, path_;
  FakeDriver* state_ = nullptr;
};

// Null where this machine has no NVRTC: the test is then skipped with the reason.
inline const NvrtcApi* find_nvrtc(std::string* reason) {
  const std::string folders = MLCC_NVRTC_FOLDERS;
  const size_t colon = folders.find(':');
  const Result<const NvrtcApi*> nvrtc =
      open_nvrtc({"", {folders.substr(0, colon), folders.substr(colon + 1)}});
  if (!nvrtc) *reason = nvrtc.reason();
  return nvrtc ? *nvrtc : nullptr;
}

}  // namespace mlcc::codegen::cuda
