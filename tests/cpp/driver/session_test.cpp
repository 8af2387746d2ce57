#include "driver/session.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

#include "codegen/cuda/nvrtc_api.h"
#include "driver/loop_kernel.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::vector<std::string> nvrtc_folders() {
  const std::string folders = MLCC_NVRTC_FOLDERS;
  const size_t colon = folders.find(':');
  return {folders.substr(0, colon), folders.substr(colon + 1)};
}

std::string reason_for(const Options& options, int32_t index = 0) {
  const Result<const DeviceBackend*> found = find_cuda_backend(options, index);
  return found ? "" : found.reason();
}

TEST(CudaBackend, TellsWhyThereIsNone) {
  Options options;
  options.libcuda = "/nonexistent/libcuda.so";
  EXPECT_THAT(reason_for(options), HasSubstr("no CUDA driver: /nonexistent/libcuda.so"));
  options.libcuda = MLCC_FAKE_CUDA;
  EXPECT_THAT(reason_for(options, 3), HasSubstr("device cuda:3: this machine has 1"));
  options.nvrtc = "/nonexistent/libnvrtc.so";
  EXPECT_THAT(reason_for(options), HasSubstr("no NVRTC"));
  options.gpu = "off";
  EXPECT_EQ(reason_for(options), "option gpu is off");
  options.gpu = "emulate";
  set_llvm_library("/nonexistent/libmlcc_llvm.so");
  EXPECT_THAT(reason_for(options), HasSubstr("there is no /nonexistent/libmlcc_emulator.so"));
  EXPECT_TRUE(emulates_gpu(options));
  EXPECT_THROW((void)cuda_backend(options), Error);
  EXPECT_THROW((void)backend_for(options, {}), Error);
  options.gpu = "on";
  EXPECT_THROW((void)find_cuda_backend(options), Error);
}

TEST(CudaBackend, IsThatOfTheDevice) {
  if (const auto nvrtc = codegen::cuda::open_nvrtc({"", nvrtc_folders()}); !nvrtc)
    GTEST_SKIP() << nvrtc.reason();
  set_nvrtc_folders(nvrtc_folders());
  Options options;
  options.libcuda = MLCC_FAKE_CUDA;
  const DeviceBackend& gpu = cuda_backend(options);
  EXPECT_EQ(gpu.backend->target().backend, "cuda");
  EXPECT_EQ(gpu.backend->target().cpu, "sm_90");
  EXPECT_GT(gpu.backend->max_batch(), 1);
  EXPECT_THAT(gpu.backend->target().emitter, AllOf(HasSubstr("NVRTC"), HasSubstr("--fmad=false")));
  EXPECT_EQ(&cuda_backend(options), &gpu);
  EXPECT_EQ(&backend_for(options, {DeviceKind::kCuda, 0}), &gpu);
}

TEST(CudaBackend, CompilesWithoutADevice) {
  if (const auto nvrtc = codegen::cuda::open_nvrtc({"", nvrtc_folders()}); !nvrtc)
    GTEST_SKIP() << nvrtc.reason();
  set_nvrtc_folders(nvrtc_folders());
  Options options;
  options.cuda_arch = "sm_80";
  const auto compiler = open_cuda_compiler(options);
  ASSERT_TRUE(compiler) << compiler.reason();
  EXPECT_EQ((*compiler)->target().cpu, "sm_80");
  options.cuda_arch = "zen4";
  EXPECT_THAT(open_cuda_compiler(options).reason(), HasSubstr("expected a name like sm_90"));
}

}  // namespace
}  // namespace mlcc::driver
