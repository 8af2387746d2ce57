#include "driver/loop_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "driver/session.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The barrier between the phases shows: the second reads what other iterations of the first wrote.
constexpr std::string_view kReverseTwice = R"(
kernel @reverse(%n: i64; %x: in f32[%n], %t: inout f32[%n], %y: out f32[%n]) {
  let %m: i64 = %n - 1
  for %i in 0..%n parallel grain(2) {
    store %t[%i] = %x[%i] + 1.0
  }
  barrier
  for %j in 0..%n parallel grain(2) {
    store %y[%j] = %t[%n - 1 - %j]
  }
}
)";

constexpr std::string_view kChecked = R"(
kernel @checked(%n: i64; %x: in i64[%n]) errors(5: IndexError "index out of range") {
  for %i in 0..%n {
    check %x[%i] < 10 else 5
  }
}
)";

// Every part on a thread of its own.
void spread(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  std::vector<std::thread> threads;
  for (int64_t begin = 0; begin < n; begin += grain)
    threads.emplace_back(body, begin, std::min(n, begin + grain));
  for (std::thread& thread : threads) thread.join();
}

class LoopKernel : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    options_.cache_size_mb = 0;
#ifdef MLCC_LLVM_LIBRARY
    set_llvm_library(MLCC_LLVM_LIBRARY);
#else
    if (std::string(GetParam()) == "cpu") GTEST_SKIP() << "built without LLVM";
#endif
  }
  Options options_;
};

TEST_P(LoopKernel, RunsItsPhasesOneAfterTheOther) {
  std::vector<float> x = {1, 2, 3, 4, 5}, t(5), y(5);
  const std::vector<void*> buffers = {x.data(), t.data(), y.data()};
  const std::vector<int64_t> sizes = {5};
  EXPECT_FALSE(run_loop_kernel(kReverseTwice, sizes, buffers, GetParam(), options_, spread));
  EXPECT_THAT(y, ElementsAre(6, 5, 4, 3, 2));
}

TEST_P(LoopKernel, TellsWhichCheckFailed) {
  std::vector<int64_t> x = {1, 2, 3};
  const std::vector<void*> buffers = {x.data()};
  const std::vector<int64_t> sizes = {3};
  EXPECT_FALSE(run_loop_kernel(kChecked, sizes, buffers, GetParam(), options_, spread));
  x[1] = 10;
  const auto error = run_loop_kernel(kChecked, sizes, buffers, GetParam(), options_, spread);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->exception, "IndexError");
  EXPECT_EQ(error->text, "index out of range");
}

INSTANTIATE_TEST_SUITE_P(Backends, LoopKernel, ::testing::Values("interpreter", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

TEST(LoopKernelText, NamesItsBuffers) {
  const std::vector<LoopKernelBuffer> buffers = loop_kernel_buffers(kReverseTwice);
  ASSERT_EQ(buffers.size(), 3u);
  EXPECT_EQ(buffers[0].name, "x");
  EXPECT_EQ(buffers[2].dtype, DType::kF32);
}

TEST(LoopKernelText, WrongCallsAreErrors) {
  std::vector<int64_t> x = {1};
  const std::vector<void*> buffers = {x.data()};
  const std::vector<int64_t> sizes = {1};
  const auto fault = [&](std::string_view text, std::span<const int64_t> given,
                         std::span<void* const> data, std::string_view backend) {
    try {
      run_loop_kernel(text, given, data, backend, {}, spread);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("none");
  };
  EXPECT_THAT(fault(kChecked, {}, buffers, "cpu"), HasSubstr("found 0 sizes, expected 1"));
  EXPECT_THAT(fault(kChecked, sizes, {}, "cpu"), HasSubstr("found 0 buffers, expected 1"));
  EXPECT_THAT(fault(kChecked, sizes, buffers, "gpu"), HasSubstr("backend gpu: unknown"));
  EXPECT_THAT(fault("kernel", sizes, buffers, "cpu"), HasSubstr("1:"));
}

}  // namespace
}  // namespace mlcc::driver
