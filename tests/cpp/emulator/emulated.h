// CUDA text, compiled and run on the emulator through the C interfaces that the product uses.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tools/emulator/cuda_api.h"
#include "tools/emulator/emulator.h"

namespace mlcc::emulated {

inline const std::vector<const char*> kSchedules = {"forward", "reverse", "random", "skew-first",
                                                    "skew-last"};

// Initializes the driver, makes device 0's context current, and afterwards undoes settings.
class EmulatorTest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(cuInit(0), CUDA_SUCCESS);
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), CUDA_SUCCESS);
    ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
    mlcc_emulator_clear_launches();
  }
  void TearDown() override {
    for (const auto& [name, value] : {std::pair{"schedule", "forward"},
                                      {"strict", "0"},
                                      {"sticky", "0"},
                                      {"seed", "1"},
                                      {"arch", "90"},
                                      {"memory", "8589934592"},
                                      {"cxx", "g++"},
                                      {"fail_allocations", "0"},
                                      {"fail_launches", "0"},
                                      {"fail_loads", "0"},
                                      {"fail_with", "0"}})
      EXPECT_TRUE(mlcc_emulator_set(name, value)) << name;
    mlcc_emulator_count_bytes(0);
    EXPECT_EQ(cuCtxSetCurrent(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), CUDA_SUCCESS);
  }

  CUcontext context_ = nullptr;
};

struct CompiledText {
  nvrtcResult result;
  std::string log;
  std::vector<char> cubin;
};

inline CompiledText compile_text(const std::string& text,
                                 std::vector<const char*> options = {
                                     "--gpu-architecture=sm_90", "--std=c++17", "--fmad=false"}) {
  CompiledText compiled;
  nvrtcProgram program = nullptr;
  EXPECT_EQ(nvrtcCreateProgram(&program, text.c_str(), "test.cu", 0, nullptr, nullptr),
            NVRTC_SUCCESS);
  compiled.result = nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  size_t size = 0;
  EXPECT_EQ(nvrtcGetProgramLogSize(program, &size), NVRTC_SUCCESS);
  compiled.log.resize(size);
  EXPECT_EQ(nvrtcGetProgramLog(program, compiled.log.data()), NVRTC_SUCCESS);
  compiled.log.resize(size - 1);
  if (compiled.result == NVRTC_SUCCESS) {
    EXPECT_EQ(nvrtcGetCUBINSize(program, &size), NVRTC_SUCCESS);
    compiled.cubin.resize(size);
    if (size > 0) {
      EXPECT_EQ(nvrtcGetCUBIN(program, compiled.cubin.data()), NVRTC_SUCCESS);
    }
  }
  EXPECT_EQ(nvrtcDestroyProgram(&program), NVRTC_SUCCESS);
  return compiled;
}

// A loaded program.
class Library {
 public:
  explicit Library(const std::string& text) {
    const CompiledText compiled = compile_text(text);
    EXPECT_EQ(compiled.result, NVRTC_SUCCESS) << compiled.log;
    if (compiled.result != NVRTC_SUCCESS) return;
    EXPECT_EQ(cuLibraryLoadData(&library_, compiled.cubin.data(), nullptr, nullptr, 0, nullptr,
                                nullptr, 0),
              CUDA_SUCCESS);
  }
  ~Library() {
    if (library_) {
      EXPECT_EQ(cuLibraryUnload(library_), CUDA_SUCCESS);
    }
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  CUkernel kernel(const char* name) const {
    CUkernel kernel = nullptr;
    EXPECT_EQ(cuLibraryGetKernel(&kernel, library_, name), CUDA_SUCCESS) << name;
    return kernel;
  }

 private:
  CUlibrary library_ = nullptr;
};

// Device memory that ends at a guard page.
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) {
    EXPECT_EQ(cuMemAlloc_v2(&address_, count * sizeof(T)), CUDA_SUCCESS);
  }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) {
    EXPECT_EQ(cuMemcpyHtoD_v2(address_, values.data(), count_ * sizeof(T)), CUDA_SUCCESS);
  }
  ~Buffer() { EXPECT_EQ(cuMemFree_v2(address_), CUDA_SUCCESS); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() const { return reinterpret_cast<T*>(address_); }
  CUdeviceptr address() const { return address_; }
  std::vector<T> values() const {
    std::vector<T> values(count_);
    EXPECT_EQ(cuMemcpyDtoH_v2(values.data(), address_, count_ * sizeof(T)), CUDA_SUCCESS);
    return values;
  }

 private:
  size_t count_;
  CUdeviceptr address_ = 0;
};

struct Shape {
  unsigned grid, block, shared_bytes = 0;
};

template <class... P>
CUresult launch_on(CUstream stream, CUkernel kernel, Shape shape, P... parameters) {
  void* pointers[] = {&parameters..., nullptr};
  return cuLaunchKernel(reinterpret_cast<CUfunction>(kernel), shape.grid, 1, 1, shape.block, 1, 1,
                        shape.shared_bytes, stream, pointers, nullptr);
}

template <class... P>
CUresult launch(CUkernel kernel, Shape shape, P... parameters) {
  return launch_on(nullptr, kernel, shape, parameters...);
}

template <class T>
T poison() {
  T value;
  std::memset(&value, 0xCB, sizeof value);
  return value;
}

inline std::vector<float> ramp(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50) / 16;
  return values;
}

}  // namespace mlcc::emulated
