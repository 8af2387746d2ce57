#include "driver/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "graph/text.h"
#include "loop/text.h"
#include "runtime/plan_memory.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

runtime::ExecutablePlan plan(std::string_view text, const fusion::WaveLimits& waves = {}) {
  const auto graph = graph::parse_graph(text);
  fusion::FusionOptions options;
  options.waves = waves;
  KernelPlan plan{fusion::plan_fusion(*graph, options), {}};
  for (const fusion::Group& group : plan.fusion.groups) {
    loop::Arena arena;
    PlannedKernel kernel;
    const schedule::Machine machine = group.device.kind == DeviceKind::kCuda
                                          ? schedule::gpu_machine("sm_90")
                                          : schedule::Machine{};
    kernel.lowered = lower::lower_group(*graph, plan.fusion, group, machine, arena);
    kernel.text = loop::print(kernel.lowered.kernel);
    kernel.lowered.kernel = {};
    plan.kernels.push_back(std::move(kernel));
  }
  return plan_executable(*graph, plan);
}

// "slot on device", and "arena" behind it.
std::vector<std::string> allocations(const runtime::ExecutablePlan& plan) {
  std::vector<std::string> texts;
  for (const runtime::Step& step : plan.steps)
    if (const auto* allocate = std::get_if<runtime::AllocateStep>(&step))
      texts.push_back(std::to_string(allocate->slot) + " on " + allocate->spec.device.str() +
                      (allocate->arena ? " arena" : ""));
  return texts;
}

std::vector<std::string> launch_devices(const runtime::ExecutablePlan& plan) {
  std::vector<std::string> texts;
  for (const runtime::Step& step : plan.steps)
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
      texts.push_back(launch->device.str());
  return texts;
}

TEST(Plan, AGraphOfTheCpuKnowsNoOtherDevice) {
  const auto found = plan(R"(graph @g(%x: f32[64, 8]) {
  %0: f32[64] = sum %x {dims = [1], keepdim = false}
  %1: f32[] = sum %0 {dims = [0], keepdim = false}
  return %1
})");
  EXPECT_EQ(found.device, Device{});
  EXPECT_THAT(allocations(found), ElementsAre("1 on cpu arena", "2 on cpu"));
}

// Two kernels of the GPU, the number between them from the host.
TEST(Plan, TheArenaIsTheGpus) {
  const auto found = plan(R"(graph @g(%x: f32[64, 8] @cuda:1, %y: f32[100]) {
  %0: f32[64] @cuda:1 = sum %x {dims = [1], keepdim = false}
  %1: f32[] = sum %y {dims = [0], keepdim = false}
  %2: f32[64] @cuda:1 = mul %0, %1
  %3: f32[] @cuda:1 = sum %2 {dims = [0], keepdim = false}
  return %3
})");
  EXPECT_EQ(found.device.str(), "cuda:1");
  EXPECT_EQ(found.inputs[0].spec.device.str(), "cuda:1");
  EXPECT_EQ(found.inputs[1].spec.device.str(), "cpu");
  EXPECT_THAT(launch_devices(found), ElementsAre("cuda:1", "cpu", "cuda:1"));
  EXPECT_THAT(allocations(found), ElementsAre("2 on cuda:1 arena", "3 on cpu", "4 on cuda:1"));
}

TEST(Plan, ViewsAndExternResultsHaveDevices) {
  const auto found = plan(R"(graph @g(%x: f32[64, 8] @cuda:0) {
  %0: f32[8, 64] strides(1, 8) @cuda:0 = permute %x {dims = [1, 0]}
  %1: f32[8, 64] strides(1, 8) = extern "aten._to_copy.default"(%0, device = device("cpu"))
  return %0, %1
})");
  EXPECT_EQ(found.device, Device{});  // no kernel runs anywhere else
  for (const runtime::Step& step : found.steps) {
    if (const auto* view = std::get_if<runtime::ViewStep>(&step)) {
      EXPECT_EQ(view->spec.device.str(), "cuda:0");
    }
    if (const auto* call = std::get_if<runtime::ExternStep>(&step)) {
      EXPECT_EQ(call->expected[0]->device.str(), "cpu");
    }
  }
}

TEST(Plan, KernelsRunOnOneDeviceBesideTheCpu) {
  EXPECT_THAT(
      [] {
        plan(R"(graph @g(%x: f32[4] @cuda:0, %y: f32[4] @cuda:1) {
  %0: f32[4] @cuda:0 = neg %x
  %1: f32[4] @cuda:1 = neg %y
  return %0, %1
})");
      },
      ThrowsMessage<Error>(
          HasSubstr("graph g: computes on cuda:0 and cuda:1, expected one of them")));
}

TEST(Plan, WhatRunsAtTheSameTimeSharesNoMemory) {
  constexpr std::string_view kText = R"(graph @g(%x: f32[8], %y: f32[4]) {
  %0: f32[8] = exp %x
  %1: f32[] = sum %0 {dims = [0], keepdim = false}
  %2: f32[4] = exp %y
  %3: f32[] = prod %2 {dims = [0], keepdim = false}
  return %1, %3
})";
  const auto kinds = [](const runtime::ExecutablePlan& plan) {
    std::string text;
    for (const runtime::Step& step : plan.steps) {
      if (std::holds_alternative<runtime::AllocateStep>(step)) text += "a";
      if (std::holds_alternative<runtime::ReleaseStep>(step)) text += "r";
      if (const auto* launch = std::get_if<runtime::LaunchStep>(&step))
        text += launch->beside ? "+" : "l";
    }
    return text;
  };
  EXPECT_EQ(kinds(plan(kText)), "alralr");
  EXPECT_EQ(kinds(plan(kText, {100, 1000})), "aal+r");
}

TEST(Plan, WhatIsNeededLateIsComputedLate) {
  const auto found = plan(R"(graph @g(%x: f32[1000], %w: f32[2000]) {
  %0: f32[1000] = exp %x
  %1: f32[2000] = extern "my.first.default"(%w)
  %2: f32[2000] = extern "my.second.default"(%1)
  %3: f32[2000] = extern "my.third.default"(%2)
  %4: f32[1000] = extern "my.last.default"(%3, %0, %x)
  return %4
})");
  const std::vector<int64_t> live =
      runtime::live_bytes(found, [](std::string_view) -> int64_t { return 0; });
  // %x and two of the large ones; %0 comes when there is one of them only.
  EXPECT_EQ(*std::max_element(live.begin(), live.end()), 5 * 4000);
}

}  // namespace
}  // namespace mlcc::driver
