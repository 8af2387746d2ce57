#include "fusion/recompute.h"

#include <gtest/gtest.h>

#include "graph/text.h"

namespace mlcc::fusion {
namespace {

constexpr int64_t kElements = 64 * 32;

FusionPlan plan(const char* text, int64_t ops_of_a_node = 1) {
  FusionOptions options;
  options.ops_of = [=](const graph::Node&) { return ops_of_a_node; };
  static std::vector<std::unique_ptr<graph::Graph>> graphs;  // plans point into them
  graphs.push_back(graph::parse_graph(text));
  return plan_fusion(*graphs.back(), options);
}

int64_t bytes(const FusionPlan& plan) {
  return *bytes_moved(plan, [](std::string_view) -> int64_t { return 1; });
}

// A row's sum and a column's sum of the same values, each in a kernel of its own.
constexpr const char* kRowsAndColumns = R"(graph @g(%x: f32[64, 32], %m: f32[64, 1]) {
  %0: f32[64, 32] = sub %x, %m
  %1: f32[64, 32] = mul %0, %0
  %2: f32[64] = sum %1 {dims = [1], keepdim = false}
  %3: f32[32] = sum %1 {dims = [0], keepdim = false}
  return %2, %3
})";

TEST(Recompute, NothingIsWrittenThatOneOperandMakes) {
  const FusionPlan found = plan(kRowsAndColumns);
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(bytes(found), 4 * (2 * (kElements + 64) + 64 + 32));
}

TEST(Recompute, SavesMuchOrLittleOfTheTraffic) {
  EXPECT_FALSE(plan(kRowsAndColumns).saves_little);
  const FusionPlan found = plan(R"(graph @g(%x: f32[64, 32], %m: f32[64, 1], %y: f32[64, 999]) {
  %0: f32[64, 32] = sub %x, %m
  %1: f32[64, 32] = mul %0, %0
  %2: f32[64] = sum %1 {dims = [1], keepdim = false}
  %3: f32[32] = sum %1 {dims = [0], keepdim = false}
  %4: f32[64, 999] = exp %y
  return %2, %3, %4
})");
  EXPECT_EQ(found.groups.size(), 3u);
  EXPECT_TRUE(found.saves_little);
}

TEST(Recompute, IsNotDoneWhereItIsSwitchedOff) {
  const auto graph = graph::parse_graph(kRowsAndColumns);
  FusionOptions options;
  options.ops_of = [](const graph::Node&) { return 1; };
  options.recompute = false;
  EXPECT_EQ(bytes(plan_fusion(*graph, options)), 4 * (3 * kElements + 64 + 64 + 32));
}

TEST(Recompute, WhatTakesManyOpsIsWritten) {
  const FusionPlan found = plan(kRowsAndColumns, 12);
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(bytes(found), 4 * (3 * kElements + 64 + 64 + 32));
}

TEST(Recompute, WithoutCostsNothingIsComputedAgain) {
  const auto graph = graph::parse_graph(kRowsAndColumns);
  EXPECT_EQ(bytes(plan_fusion(*graph, {})), 4 * (3 * kElements + 64 + 64 + 32));
}

// Reading two operands is no less than writing a value and reading it.
TEST(Recompute, WhatIsMadeOfTwoLargeOperandsIsWritten) {
  const FusionPlan found = plan(R"(graph @g(%x: f32[64, 32], %y: f32[64, 32]) {
  %0: f32[64, 32] = mul %x, %y
  %1: f32[64] = sum %0 {dims = [1], keepdim = false}
  %2: f32[32] = sum %0 {dims = [0], keepdim = false}
  return %1, %2
})");
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(bytes(found), 4 * (4 * kElements + 64 + 32));
}

// A call needs the value in memory, so the other kernel reads it there.
TEST(Recompute, WhatACallReadsIsWrittenOnce) {
  const FusionPlan found = plan(R"(graph @g(%x: f32[64, 32], %w: f32[32, 64]) {
  %0: f32[64, 32] = neg %x
  %1: f32[32] = sum %0 {dims = [0], keepdim = false}
  %2: f32[64] = sum %0 {dims = [1], keepdim = false}
  %3: f32[64, 64] = extern "aten.mm.default"(%0, %w)
  return %1, %2, %3
})");
  EXPECT_EQ(found.inlined.size(), 0u);
}

// The sum is known to the kernel of the rows alone: it is written instead of the rows.
TEST(Recompute, NumbersOfARowAreWrittenInsteadOfTheRow) {
  const FusionPlan found = plan(R"(graph @g(%x: f32[64, 32]) {
  %0: f32[64, 1] = sum %x {dims = [1], keepdim = true}
  %1: f32[64, 32] = sub %x, %0
  %2: f32[64, 32] = abs %1
  %3: f32[64] = sum %2 {dims = [1], keepdim = false}
  %4: f32[32] = sum %2 {dims = [0], keepdim = false}
  return %3, %4
})");
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(bytes(found), 4 * (2 * kElements + 2 * 64 + 64 + 32));
}

// A reader of more elements would compute each several times.
TEST(Recompute, WhatIsReadOftenIsWritten) {
  const FusionPlan found = plan(R"(graph @g(%x: f32[64, 32], %y: f32[16, 64, 32]) {
  %0: f32[64, 32] = neg %x
  %1: f32[32] = sum %0 {dims = [0], keepdim = false}
  %2: f32[16, 64, 32] = mul %0, %y
  return %1, %2
})");
  EXPECT_EQ(found.inlined.size(), 0u);
}

}  // namespace
}  // namespace mlcc::fusion
