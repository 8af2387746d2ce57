#include "runtime/trial.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>

#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Lt;

// What kernels were given, and how often; kernels are plain functions.
int calls_of_shared = 0;
int calls_of_first = 0;
std::vector<float> seen;
std::vector<int64_t> seen_places;
int64_t seen_size = 0;

const ParallelFor kSerial = [](int64_t n, int64_t, const auto& body) { body(0, n); };

int64_t shared_kernel(const KernelArgs*, int64_t, int64_t) { return ++calls_of_shared, 0; }

int64_t first_kernel(const KernelArgs* args, int64_t, int64_t) {
  ++calls_of_first;
  const auto* x = static_cast<const float*>(args->buffers[0]);
  const auto* i = static_cast<const int64_t*>(args->buffers[1]);
  seen_size = args->sizes[0];
  seen.assign(x, x + seen_size);
  seen_places.assign(i, i + 3);
  return 0;
}

int64_t slow_kernel(const KernelArgs*, int64_t, int64_t) {
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return 0;
}

int64_t failing_kernel(const KernelArgs*, int64_t, int64_t) { return 1; }

// One launch behind a shared one, which makes slot 2 of what slots 0 (f32[s0]) and 1 (i64[3]) hold.
class Plan {
 public:
  Plan() {
    const SymExpr s0 = SymExpr::symbol("s0");
    contender_.plan.num_slots = 5;
    contender_.plan.inputs = {{.spec = {DType::kF32, {s0}, {SymExpr(1)}}},
                              {.spec = {DType::kI64, {SymExpr(3)}, {SymExpr(1)}}}};
    contender_.plan.steps.emplace_back(BindStep{"s0", 0, 0});
    allocate(2, true);
    launch("shared", {0, 2}, shared_kernel);
  }

  Contender with(const std::string& key, PhaseFunction function) {
    allocate(3, true);
    allocate(4, false);
    launch(key, {2, 1, 3, 4}, function);
    contender_.plan.outputs = {4};
    return contender_;
  }

 private:
  void allocate(Slot slot, bool arena) {
    contender_.plan.steps.emplace_back(
        AllocateStep{slot, {DType::kF32, {SymExpr::symbol("s0")}, {SymExpr(1)}}, arena});
  }

  void launch(const std::string& key, std::vector<Slot> buffers, PhaseFunction function) {
    LaunchStep step;
    step.key = hash_bytes(key);
    step.label = key;
    step.buffers = std::move(buffers);
    step.sizes = {SymExpr::symbol("s0")};
    step.phases = {{SymExpr(1), SymExpr(1)}};
    step.errors = {{1, "IndexError", "out of bounds"}};
    contender_.plan.steps.emplace_back(std::move(step));
    contender_.kernels.push_back(
        std::make_shared<HostKernel>(key, std::vector<PhaseFunction>{function}));
  }

  Contender contender_;
};

std::string reason(const Result<TrialResult>& result) { return result ? "" : result.reason(); }

Result<TrialResult> trial(PhaseFunction first, PhaseFunction second, const TrialLimits& limits = {},
                          int64_t size = 2000) {
  return try_both(
      Plan().with("first", first), Plan().with("second", second),
      [size](std::string_view) { return size; }, kSerial, limits);
}

int64_t quick_kernel(const KernelArgs*, int64_t, int64_t) { return 0; }

TEST(Trial, TheFasterOneIsFound) {
  const Result<TrialResult> result = trial(slow_kernel, quick_kernel);
  ASSERT_TRUE(result) << result.reason();
  EXPECT_GT(result->low_ratio, 2);
  EXPECT_GE(result->ratio, result->low_ratio);
  EXPECT_GT(result->first_seconds, result->second_seconds);
  EXPECT_LT(trial(quick_kernel, slow_kernel)->ratio, 0.5);
}

// What it would have made is made up: numbers that are no zeros and places that exist.
TEST(Trial, WhatBothPlansHaveIsLeftOut) {
  calls_of_shared = calls_of_first = 0;
  ASSERT_TRUE(trial(first_kernel, quick_kernel));
  EXPECT_EQ(calls_of_shared, 0);
  EXPECT_GT(calls_of_first, 7);
  EXPECT_EQ(seen_size, 2000);
  EXPECT_THAT(seen, Each(AllOf(Ge(0.5F), Lt(1.0F))));
  EXPECT_NE(seen.front(), seen.back());
  EXPECT_THAT(seen_places, Each(0));
}

TEST(Trial, TellsWhyThereIsNone) {
  EXPECT_EQ(reason(try_both(
                Plan().with("first", quick_kernel), Plan().with("first", quick_kernel),
                [](std::string_view) { return 5; }, kSerial)),
            "the kernels are the same");
  EXPECT_EQ(reason(trial(slow_kernel, slow_kernel, {.seconds = 1e-4})), "it takes too long");
  EXPECT_THAT(reason(trial(quick_kernel, slow_kernel, {.bytes = 1000})), HasSubstr("bytes"));
  EXPECT_EQ(reason(trial(quick_kernel, failing_kernel)), "out of bounds");
}

TEST(TimeInTurns, ComparesWhateverFunctionsDo) {
  const auto wait = [] { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  int calls = 0;
  const auto found = time_in_turns(wait, [&] { ++calls; }, 0.1);
  ASSERT_TRUE(found);
  EXPECT_GT(found->low_ratio, 10);
  EXPECT_GE(found->high_ratio, found->ratio);
  EXPECT_GE(found->ratio, found->low_ratio);
  EXPECT_GE(calls, 9);
  EXPECT_EQ(time_in_turns(wait, wait, 0.0001).reason(), "it takes too long");
}

TEST(TimeInTurns, AFewRunsTellWhoIsFarAhead) {
  int calls = 0;
  const auto wait = [&] {
    ++calls;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  };
  const auto found = time_in_turns(wait, [] {}, 0.001);
  ASSERT_TRUE(found);
  EXPECT_GT(found->low_ratio, 4);
  EXPECT_LT(time_in_turns([] {}, wait, 0.001)->high_ratio, 0.25);
  EXPECT_LE(calls, 8);
}

TEST(MakeUp, FillsWithNumbersThatAreOrdinary) {
  std::vector<float> numbers(3000, -1);
  make_up(numbers.data(), 12000, DType::kF32);
  EXPECT_THAT(numbers, Each(AllOf(Ge(0.5F), Lt(1.0F))));
  std::vector<int8_t> bytes(30, 7);
  make_up(bytes.data(), 30, DType::kI8);
  EXPECT_THAT(bytes, Each(0));
}

}  // namespace
}  // namespace mlcc::runtime
