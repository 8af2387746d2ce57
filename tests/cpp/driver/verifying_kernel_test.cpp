// Kernels beside their references: planted wrong code, in-place memory, failed checks, threads.
#include "driver/verifying_kernel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <thread>

#include "fusion/fusion.h"
#include "graph/text.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::driver {
namespace {

namespace fs = std::filesystem;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Stands for compiled code.
class FakeKernel final : public runtime::Kernel {
 public:
  using Body = std::function<int64_t(float* const* buffers, int64_t size)>;
  explicit FakeKernel(Body body) : Kernel("k_fake"), body_(std::move(body)) {}
  int num_phases() const override { return 1; }
  runtime::CheckFailure run(const runtime::KernelArgs& args, std::span<const int64_t>,
                            const runtime::LaunchContext&) const override {
    ++num_runs;
    return {body_(reinterpret_cast<float* const*>(args.buffers), args.sizes[0]), {}};
  }
  mutable std::atomic<int> num_runs{0};

 private:
  const Body body_;
};

constexpr std::string_view kSquare = R"(graph @square(%x: f32[s0]) symbols(s0 in 2..65536) {
  %0: f32[s0] = mul %x, %x
  %1: f32[s0] = add %0, %x
  return %1
})";
const FakeKernel::Body kRight = [](float* const* buffers, int64_t size) {
  for (int64_t i = 0; i < size; ++i) buffers[1][i] = buffers[0][i] * buffers[0][i] + buffers[0][i];
  return 0;
};
const FakeKernel::Body kWrongAtTheEnd = [](float* const* buffers, int64_t size) {
  kRight(buffers, size);
  buffers[1][size - 1] += 0.25F;
  return 0;
};

class VerifyingKernelTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mlcc-verify-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    options_.dump_dir = pattern;
    options_.verify = "first";
    set_log_sink([this](LogChannel, LogLevel level, std::string_view text) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(text);
    });
  }
  void TearDown() override {
    set_log_sink(nullptr);
    fs::remove_all(options_.dump_dir);
  }

  void make(std::string_view text, const FakeKernel::Body& body) {
    const std::shared_ptr<const graph::Graph> graph = graph::parse_graph(text);
    const fusion::FusionPlan plan = fusion::plan_fusion(*graph, {});
    ASSERT_THAT(plan.groups, SizeIs(1));
    const fusion::Group& group = plan.groups[0];
    reference_ = std::make_shared<const Reference>(run_node_by_node(graph), group);
    std::vector<graph::Value*> buffers = group.inputs;
    buffers.insert(buffers.end(), group.outputs.begin(), group.outputs.end());
    fake_ = std::make_shared<const FakeKernel>(body);
    const VerifiedLaunch launch{fake_, "mul, add", "the text", buffers, {}, 1, reference_};
    ASSERT_EQ(why_not_verified(launch, options_), "");
    kernel_ = std::make_unique<VerifyingKernel>(launch, options_);
  }

  // The kernel over these floats; every symbol is their number.
  int64_t run(std::vector<float>& x, std::vector<float>& y) const {
    std::vector<void*> buffers = {x.data(), y.data()};
    std::vector<int64_t> sizes(1 + reference_->symbols().size(), static_cast<int64_t>(x.size()));
    return kernel_->run({buffers.data(), sizes.data()}, {}, {nullptr}).code;
  }

  Options options_;
  std::vector<std::string> warnings_;
  std::shared_ptr<const Reference> reference_;
  std::shared_ptr<const FakeKernel> fake_;
  std::unique_ptr<VerifyingKernel> kernel_;
};

TEST_F(VerifyingKernelTest, WrongCodeIsToldAndReplaced) {
  make(kSquare, kWrongAtTheEnd);
  std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  EXPECT_EQ(run(x, y), 0);
  EXPECT_THAT(y, ElementsAre(2, 6, 12));
  ASSERT_THAT(warnings_, SizeIs(1));
  EXPECT_THAT(warnings_[0], HasSubstr("kernel mul, add (k_fake) differs from its reference in 1 of "
                                      "3 elements of %2 (f32), most at element 2: found 12.25, "
                                      "expected 12, off by 0.25"));
  const size_t place = warnings_[0].find("stands in ") + 10;
  const std::string folder = warnings_[0].substr(place, warnings_[0].find(';', place) - place);
  EXPECT_TRUE(fs::exists(folder + "/000_kernel.loop")) << warnings_[0];
  EXPECT_TRUE(fs::exists(folder + "/001_fused.graph")) << warnings_[0];
  // Later calls get the reference's results too, whatever their sizes.
  x = {10, 20, 30, 40};
  y.assign(4, 0);
  run(x, y);
  EXPECT_THAT(y, ElementsAre(110, 420, 930, 1640));
  EXPECT_EQ(fake_->num_runs, 1);
  EXPECT_THAT(warnings_, SizeIs(1));
}

TEST_F(VerifyingKernelTest, WrongCodeRaisesUnderStrict) {
  options_.strict = true;
  make(kSquare, kWrongAtTheEnd);
  std::vector<float> x = {1, 2, 3};
  std::vector<float> y(3);
  EXPECT_THROW(run(x, y), InternalError);
}

TEST_F(VerifyingKernelTest, RightCodeIsCheckedOnce) {
  make(kSquare, kRight);
  std::vector<float> x = {1, 2, 3, NAN, INFINITY};
  std::vector<float> y(5);
  run(x, y);
  EXPECT_THAT(warnings_, IsEmpty());
  // The reference is not looked at any more: its results would not be these.
  x = {1};
  y = {0};
  run(x, y);
  EXPECT_THAT(y, ElementsAre(2));
  EXPECT_EQ(fake_->num_runs, 2);
}

TEST_F(VerifyingKernelTest, MemoryThatTheKernelOverwritesIsTakenBefore) {
  make(kSquare, kWrongAtTheEnd);
  std::vector<float> x = {1, 2, 3};
  run(x, x);
  EXPECT_THAT(x, ElementsAre(2, 6, 12));
  EXPECT_THAT(warnings_, SizeIs(1));
}

TEST_F(VerifyingKernelTest, ModesSayWhichRunsAreChecked) {
  int wrong_run = 0;
  int runs = 0;
  const FakeKernel::Body body = [&](float* const* buffers, int64_t size) {
    kRight(buffers, size);
    if (runs++ == wrong_run) buffers[1][0] += 1;
    return 0;
  };
  const auto is_found = [&](const std::string& mode, int wrong) {
    options_.verify = mode;
    wrong_run = wrong;
    runs = 0;
    warnings_.clear();
    make(kSquare, body);
    std::vector<float> x = {1, 2};
    std::vector<float> y(2);
    for (int i = 0; i < 101; ++i) run(x, y);
    return !warnings_.empty();
  };
  EXPECT_TRUE(is_found("first", 0));
  EXPECT_FALSE(is_found("first", 1));
  EXPECT_TRUE(is_found("sample", 100));
  EXPECT_FALSE(is_found("sample", 50));
  EXPECT_TRUE(is_found("always", 50));
  EXPECT_FALSE(is_found("nan", 0));
  EXPECT_THROW(parse_verification("sometimes"), Error);
}

TEST_F(VerifyingKernelTest, ModeNanTellsWhereOneBegins) {
  options_.verify = "nan";
  make(kSquare, [](float* const* buffers, int64_t size) {
    kRight(buffers, size);
    if (buffers[0][0] < 2) buffers[1][0] = NAN;
    return 0;
  });
  std::vector<float> x = {NAN, 2};
  std::vector<float> y(2);
  run(x, y);
  EXPECT_THAT(warnings_, IsEmpty());
  x[0] = 1;
  run(x, y);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("makes NaN or infinities in %2")));
  EXPECT_TRUE(std::isnan(y[0]));  // it is told, no more
}

TEST_F(VerifyingKernelTest, ACheckThatFailsMustFailInTheReference) {
  make(kSquare, [](float* const*, int64_t) { return 7; });
  std::vector<float> x = {1, 2};
  std::vector<float> y(2);
  EXPECT_EQ(run(x, y), 7);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("failed check 7, which holds in its reference")));
}

TEST_F(VerifyingKernelTest, ThreadsWaitForTheFirstVerdict) {
  make(kSquare, kWrongAtTheEnd);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        std::vector<float> x = {1, 2, 3};
        std::vector<float> y(3);
        run(x, y);
        wrong += y != std::vector<float>{2, 6, 12};
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_THAT(warnings_, SizeIs(1));
}

constexpr std::string_view kCentered = R"(graph @centered(%x: f32[s0]) symbols(s0 in 2..65536) {
  %0: f32[1] = sum %x {dims = [0], keepdim = true}
  %1: f32[s0] = add %x, %0
  return %1
})";

// x + sum(x), the sum taken by halves and off by `error`.
FakeKernel::Body centered(float error) {
  return [error](float* const* buffers, int64_t size) {
    float halves[2] = {0, 0};
    for (int64_t i = 0; i < size; ++i) halves[i % 2] += buffers[0][i];
    for (int64_t i = 0; i < size; ++i)
      buffers[1][i] = buffers[0][i] + (halves[0] + halves[1] + error);
    return 0;
  };
}

TEST_F(VerifyingKernelTest, OrderOfSumsIsFreeAndCancellationCounts) {
  // Partial sums reach 2e5 and cancel: what is left has an error of about 0.1.
  std::vector<float> x(400);
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = (i < 200 ? 1000.1F : -1000.1F) + 0.37F * static_cast<float>(i % 7);
  std::vector<float> y(x.size());
  make(kCentered, centered(0));
  run(x, y);
  EXPECT_THAT(warnings_, IsEmpty());
  make(kCentered, centered(50.0F));
  run(x, y);
  EXPECT_THAT(warnings_, SizeIs(1));
}

}  // namespace
}  // namespace mlcc::driver
