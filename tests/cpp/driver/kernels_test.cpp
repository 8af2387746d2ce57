#include "driver/kernels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "driver/loop_kernel.h"
#include "driver/session.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

namespace fs = std::filesystem;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr std::string_view kAdd = R"(kernel @k(%s0: i64; %b0: in f32[%s0], %b1: out f32[%s0]) {
  for %0 in 0..%s0 parallel grain(2) {
    store %b1[%0] = %b0[%0] + NUMBER.0
  }
}
)";

// Kernels for the GPU of the fake driver, compiled by the real NVRTC.
class CudaKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mlcc-kernels-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    const std::string folders = MLCC_NVRTC_FOLDERS;
    const size_t colon = folders.find(':');
    set_nvrtc_folders({folders.substr(0, colon), folders.substr(colon + 1)});
    options_.libcuda = MLCC_FAKE_CUDA;
    options_.cache_dir = folder_ / "cache";
    options_.num_compile_threads = 2;
    if (const auto found = find_cuda_backend(options_); !found) GTEST_SKIP() << found.reason();
  }
  void TearDown() override {
    kernel_cache().clear();
    fs::remove_all(folder_);
  }

  std::vector<runtime::KernelOrigin> find(int count) {
    const DeviceBackend& gpu = cuda_backend(options_);
    std::vector<KernelRequest> requests;
    for (int i = 0; i < count; ++i) {
      std::string text(kAdd);
      text.replace(text.find("NUMBER"), 6, std::to_string(i));
      const Hash128 key = kernel_key(text, gpu.backend->target(), options_);
      requests.push_back({text, key, 1, "add"});
    }
    Dump dump(options_, "test");
    std::vector<runtime::KernelOrigin> origins;
    kernels_.clear();
    for (const auto& found : find_kernels(requests, gpu, options_, dump)) {
      EXPECT_TRUE(found) << found.reason();
      kernels_.push_back(found->kernel);
      origins.push_back(found->origin);
    }
    return origins;
  }

  fs::path folder_;
  Options options_;
  std::vector<runtime::KernelPtr> kernels_;
};

TEST_F(CudaKernels, AreCompiledOnceAndKeptInTheStore) {
  const int64_t misses = kernel_cache().info().misses;
  EXPECT_THAT(find(10), Each(runtime::KernelOrigin::kCompiled));
  EXPECT_EQ(kernel_cache().info().misses - misses, 10);
  std::set<std::string> names;
  for (const runtime::KernelPtr& kernel : kernels_) names.insert(kernel->name());
  EXPECT_EQ(names.size(), 10u);
  EXPECT_THAT(find(10), Each(runtime::KernelOrigin::kMemory));
  kernel_cache().clear();
  EXPECT_THAT(find(10), Each(runtime::KernelOrigin::kDisk));
  EXPECT_EQ(kernel_cache().info().misses - misses, 10);
}

TEST_F(CudaKernels, AreShownInDumps) {
  options_.dump = "cuda, ptx";
  options_.dump_dir = folder_ / "dump";
  find(3);
  std::string cuda, ptx;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(folder_ / "dump")) {
    if (!entry.is_regular_file()) continue;
    std::ifstream stream(entry.path(), std::ios::binary);
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    if (entry.path().extension() == ".cuda") cuda += text;
    if (entry.path().extension() == ".ptx") ptx += text;
  }
  for (const runtime::KernelPtr& kernel : kernels_) {
    EXPECT_THAT(cuda, HasSubstr(kernel->name()));
    EXPECT_THAT(ptx, HasSubstr(kernel->name()));
  }
}

// The fake driver computes nothing, but takes copies and launches.
TEST_F(CudaKernels, RunFromTexts) {
  std::vector<float> x(8, 3), y(8, 4);
  const std::vector<int64_t> sizes = {8};
  const std::vector<void*> buffers = {x.data(), y.data()};
  const std::string text = std::string(kAdd).replace(kAdd.find("NUMBER"), 6, "1");
  EXPECT_FALSE(run_loop_kernel(text, sizes, buffers, "cuda", options_, {}));
  EXPECT_THAT(y, Each(4.0f));
}

}  // namespace
}  // namespace mlcc::driver
