// The C interface of NVRTC.
#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include <unistd.h>

#include "tests/cpp/emulator/emulated.h"

namespace mlcc::emulated {
namespace {

using Nvrtc = EmulatorTest;

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_F(Nvrtc, says_its_version_and_archs) {
  int major = 0, minor = 0, count = 0;
  EXPECT_EQ(nvrtcVersion(&major, &minor), NVRTC_SUCCESS);
  EXPECT_EQ(major * 10 + minor, 130);
  ASSERT_EQ(nvrtcGetNumSupportedArchs(&count), NVRTC_SUCCESS);
  std::vector<int> archs(count);
  ASSERT_EQ(nvrtcGetSupportedArchs(archs.data()), NVRTC_SUCCESS);
  EXPECT_TRUE(std::is_sorted(archs.begin(), archs.end()));
  EXPECT_TRUE(std::binary_search(archs.begin(), archs.end(), 90));
  EXPECT_STREQ(nvrtcGetErrorString(NVRTC_ERROR_COMPILATION), "NVRTC_ERROR_COMPILATION");
}

TEST_F(Nvrtc, errors_name_the_line_of_the_text) {
  const CompiledText compiled =
      compile_text("extern \"C\" __global__ void k(int* x) {\n  *x = unknown;\n}\n");
  EXPECT_EQ(compiled.result, NVRTC_ERROR_COMPILATION);
  EXPECT_TRUE(contains(compiled.log, "test.cu:2:")) << compiled.log;
  EXPECT_TRUE(contains(compiled.log, "unknown")) << compiled.log;
}

TEST_F(Nvrtc, what_nvrtc_lacks_is_an_error_here_too) {
  const CompiledText no_type =
      compile_text("extern \"C\" __global__ void k(uint32_t* x) { *x = 1; }");
  EXPECT_EQ(no_type.result, NVRTC_ERROR_COMPILATION);
  const CompiledText no_definition = compile_text(
      "__device__ int missing(int); extern \"C\" __global__ void k(int* x) { *x = missing(1); }");
  EXPECT_EQ(no_definition.result, NVRTC_ERROR_COMPILATION);
  EXPECT_TRUE(contains(no_definition.log, "missing")) << no_definition.log;
}

TEST_F(Nvrtc, takes_the_options_of_the_real_one) {
  const char* text = "extern \"C\" __global__ void k(int* x) { *x = VALUE + __CUDA_ARCH__; }";
  EXPECT_EQ(compile_text(text, {"--gpu-architecture=sm_100a", "-DVALUE=1", "--fmad=false",
                                "-std=c++17", "--ptxas-options=-O3"})
                .result,
            NVRTC_SUCCESS);
  EXPECT_EQ(compile_text(text, {"-arch=sm_90"}).result, NVRTC_ERROR_COMPILATION);
  for (const char* wrong :
       {"--gpu-architecture=sm_91", "--no-such-option", "-std=c++11", "-Ofast"}) {
    const CompiledText compiled = compile_text(text, {wrong});
    EXPECT_EQ(compiled.result, NVRTC_ERROR_INVALID_OPTION) << wrong;
    EXPECT_TRUE(contains(compiled.log, wrong)) << compiled.log;
  }
}

TEST_F(Nvrtc, a_virtual_architecture_gives_no_cubin) {
  const CompiledText compiled =
      compile_text("extern \"C\" __global__ void k() {}", {"--gpu-architecture=compute_90"});
  EXPECT_EQ(compiled.result, NVRTC_SUCCESS);
  EXPECT_TRUE(compiled.cubin.empty());
}

TEST_F(Nvrtc, verbose_ptxas_lists_the_kernels) {
  // Found: what is defined at global scope with C linkage. Comments, strings, macros and templates
  // define nothing.
  const CompiledText compiled = compile_text(R"cuda(
#define MLCC_KERNEL(name, threads) extern "C" __global__ void __launch_bounds__(threads) name
// extern "C" __global__ void commented() {}
/* MLCC_KERNEL(also_commented, 1) */
__device__ const char* text() { return "MLCC_KERNEL(quoted, 1)(int)"; }
template <class T> __global__ void templated(T) {}
__global__ void mangled() {}
extern "C" __global__ void declared(int);
extern "C" __global__ void declared(int) {}
extern "C" {
__global__ __launch_bounds__(2 * (32)) void in_a_block() { if (true) { } }
}
MLCC_KERNEL(by_macro, 96)(float* x) { *x = 1; }
)cuda",
                                             {"--gpu-architecture=sm_90", "--ptxas-options=-v"});
  ASSERT_EQ(compiled.result, NVRTC_SUCCESS) << compiled.log;
  for (const char* found : {"declared", "in_a_block", "by_macro"})
    EXPECT_TRUE(contains(compiled.log, std::string("entry function '") + found + "' for 'sm_90'"))
        << compiled.log;
  for (const char* other : {"commented", "quoted", "templated", "mangled", "'name'"})
    EXPECT_FALSE(contains(compiled.log, other)) << compiled.log;
  EXPECT_EQ(compiled.log.find("'declared'"), compiled.log.rfind("'declared'"));
  EXPECT_TRUE(contains(compiled.log, "ptxas info    : Used 32 registers")) << compiled.log;
}

TEST_F(Nvrtc, a_compiler_that_is_missing_is_said_so) {
  ASSERT_TRUE(mlcc_emulator_set("cxx", "/no/such/compiler"));
  const CompiledText compiled = compile_text("extern \"C\" __global__ void k() {}");
  EXPECT_EQ(compiled.result, NVRTC_ERROR_COMPILATION);
  EXPECT_TRUE(contains(compiled.log, "/no/such/compiler")) << compiled.log;
}

TEST_F(Nvrtc, leaves_no_files) {
  char folder[] = "/tmp/mlcc_emulator_test_XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const char* before = std::getenv("TMPDIR");
  const std::string saved = before ? before : "";
  setenv("TMPDIR", folder, 1);
  EXPECT_EQ(compile_text("extern \"C\" __global__ void k() {}").result, NVRTC_SUCCESS);
  EXPECT_EQ(compile_text("not C++").result, NVRTC_ERROR_COMPILATION);
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  std::filesystem::remove_all(folder);
  EXPECT_EQ(compile_text("extern \"C\" __global__ void k() {}").result, NVRTC_ERROR_COMPILATION);
  before ? setenv("TMPDIR", saved.c_str(), 1) : unsetenv("TMPDIR");
}

TEST_F(Nvrtc, threads_compile_and_launch_at_once) {
  constexpr int threads = 4;
  std::array<int, threads> results = {};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      ASSERT_EQ(cuCtxSetCurrent(context_), CUDA_SUCCESS);
      const Library library(
          "extern \"C\" __global__ void k(int* x) { __shared__ int s; if (threadIdx.x "
          "== 0) s = " +
          std::to_string(t) + "; __syncthreads(); if (s == " + std::to_string(t) +
          ") atomicAdd(x, s + 1); }");
      for (int i = 0; i < 50; ++i)
        ASSERT_EQ(launch(library.kernel("k"), {2, 64}, &results[t]), CUDA_SUCCESS);
    });
  for (std::thread& thread : running) thread.join();
  for (int t = 0; t < threads; ++t) EXPECT_EQ(results[t], 50 * 128 * (t + 1));
}

TEST_F(Nvrtc, refuses_wrong_arguments) {
  nvrtcProgram none = nullptr;
  EXPECT_EQ(nvrtcCreateProgram(&none, nullptr, "", 0, nullptr, nullptr), NVRTC_ERROR_INVALID_INPUT);
  EXPECT_EQ(nvrtcCompileProgram(nullptr, 0, nullptr), NVRTC_ERROR_INVALID_PROGRAM);
  EXPECT_EQ(nvrtcDestroyProgram(&none), NVRTC_ERROR_INVALID_PROGRAM);
}

}  // namespace
}  // namespace mlcc::emulated
