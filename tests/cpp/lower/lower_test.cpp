#include "lower/lower.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"
#include "loop/text.h"

namespace mlcc::lower {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr schedule::Machine kGpu{.is_gpu = true};

// The text of the kernel of the graph's last group.
std::string lowered(std::string_view text, const schedule::Machine& machine) {
  const auto graph = graph::parse_graph(text);
  const fusion::FusionPlan plan = fusion::plan_fusion(*graph, {});
  loop::Arena arena;
  const LoweredKernel kernel = lower_group(*graph, plan, plan.groups.back(), machine, arena);
  loop::verify(kernel.kernel);
  return loop::print(kernel.kernel);
}

TEST(Lower, AGpuKernelTakesNumbersOfTheHostByValue) {
  const std::string text = lowered(R"(
graph @g(%x: f32[64] @cuda:0, %a: f64[], %b: f32[1], %c: f32[] @cuda:0) {
  %0: f32[] = cast %a
  %1: f32[] = reshape %b
  %2: f32[64] @cuda:0 = mul %x, %0
  %3: f32[64] @cuda:0 = add %2, %1
  %4: f32[64] @cuda:0 = add %3, %c
  return %4
})",
                                   kGpu);
  EXPECT_THAT(text, HasSubstr("%b0: in f32[64], %b1: value f64[], %b2: value f32[], "
                              "%b3: in f32[1], %b4: out f32[64]"));
  EXPECT_THAT(text, HasSubstr("let %3: f64 = %b1[]\n"));
}

// Where a GPU is emulated its tensors lie on the CPU.
constexpr std::string_view kEmulated = R"(graph @g(%x: f32[64], %a: f32[], %b: f32[1]) {
  %0: f32[64] = mul %x, %a
  %1: f32[64] = mul %0, %b
  return %1
})";

TEST(Lower, AnEmulatedGpuTakesNumbersByValueToo) {
  EXPECT_THAT(lowered(kEmulated, kGpu),
              HasSubstr("%b0: in f32[64], %b1: value f32[], %b2: in f32[1], %b3: out f32[64]"));
}

TEST(Lower, AnEmulatedGpuReadsItsOwnResultsFromMemory) {
  const std::string text = lowered(R"(graph @g(%x: f32[8192, 8]) {
  %0: f32[] = sum %x {dims = [0, 1], keepdim = false}
  %1: f32[8192, 8] = mul %x, %0
  return %1, %0
})",
                                   kGpu);
  EXPECT_THAT(text, Not(HasSubstr("value")));
  EXPECT_THAT(text, HasSubstr("%b1: in f32[1]"));
}

TEST(Lower, ACpuKernelReadsNumbersFromMemory) {
  EXPECT_THAT(lowered(kEmulated, {}), HasSubstr("%b1: in f32[1]"));
}

}  // namespace
}  // namespace mlcc::lower
