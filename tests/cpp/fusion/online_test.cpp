#include "fusion/online.h"

#include <gtest/gtest.h>

#include <memory>

#include "graph/text.h"

namespace mlcc::fusion {
namespace {

std::unique_ptr<graph::Graph> parse(const std::string& text) { return graph::parse_graph(text); }

// The repair of the reduction that the graph returns as its last output; empty: there is none.
Repair repair_of_last(const std::string& text) {
  const auto graph = parse(text);
  const FusionPlan plan = plan_fusion(*graph, {});
  const graph::Node* last = graph->outputs().back()->producer();
  const Group& group = plan.groups[static_cast<size_t>(plan.group_of.at(last))];
  const auto found = group.repairs.find(last);
  return found == group.repairs.end() ? Repair{} : found->second;
}

std::string with_body(const std::string& body) {
  return "graph @g(%x: f32[64, 32], %y: f32[64, 32]) {\n" + body + "}\n";
}

constexpr const char* kExponentials = R"(  %0: f32[64, 1] = max %x {dims = [1], keepdim = true}
  %1: f32[64, 32] = sub %x, %0
  %2: f32[64, 32] = exp %1
)";

TEST(Online, ExponentialsBelowTheirLargestAreScaled) {
  const Repair repair = repair_of_last(
      with_body(std::string(kExponentials) +
                "  %last: f32[64] = sum %2 {dims = [1], keepdim = false}\n  return %0, %last\n"));
  ASSERT_EQ(repair.size(), 1u);
  EXPECT_EQ(repair[0].kind, RepairKind::kScale);
}

TEST(Online, WhatAnotherFactorWeighsIsScaledToo) {
  const Repair repair = repair_of_last(
      with_body(std::string(kExponentials) + "  %3: f32[64, 32] = mul %2, %y\n" +
                "  %last: f32[64] = sum %3 {dims = [1], keepdim = false}\n  return %0, %last\n"));
  EXPECT_EQ(repair.size(), 1u);
}

TEST(Online, AQuotientByASumThatIsScaledHasTwoSteps) {
  const Repair repair = repair_of_last(
      with_body(std::string(kExponentials) +
                "  %3: f32[64, 1] = sum %2 {dims = [1], keepdim = true}\n"
                "  %4: f32[64, 32] = div %2, %3\n  %5: f32[64, 32] = mul %4, %y\n"
                "  %last: f32[64] = sum %5 {dims = [1], keepdim = false}\n  return %last\n"));
  ASSERT_EQ(repair.size(), 2u);
  EXPECT_EQ(repair[0].kind, RepairKind::kScale);
  EXPECT_EQ(repair[1].kind, RepairKind::kQuotient);
}

TEST(Online, AProductWithTheReciprocalOfASumIsAQuotient) {
  const Repair repair = repair_of_last(
      with_body(std::string(kExponentials) +
                "  %3: f32[64, 1] = sum %2 {dims = [1], keepdim = true}\n"
                "  %4: f32[64, 1] = reciprocal %3\n  %5: f32[64, 32] = mul %2, %4\n"
                "  %6: f32[64, 32] = mul %5, %y\n"
                "  %last: f32[64] = sum %6 {dims = [1], keepdim = false}\n  return %last\n"));
  ASSERT_EQ(repair.size(), 2u);
  EXPECT_EQ(repair[0].kind, RepairKind::kScale);
  EXPECT_EQ(repair[1].kind, RepairKind::kReciprocal);
}

// Terms that lack the factor could not be dropped where the sum is not known yet.
TEST(Online, AQuotientAloneHasNone) {
  EXPECT_TRUE(repair_of_last(with_body(std::string(kExponentials) +
                                       "  %3: f32[64, 1] = sum %2 {dims = [1], keepdim = true}\n"
                                       "  %4: f32[64, 32] = div %y, %3\n"
                                       "  %last: f32[64] = sum %4 {dims = [1], keepdim = false}\n"
                                       "  return %last\n"))
                  .empty());
}

// An exponential of what may be above its shift could overflow before it is repaired.
TEST(Online, AShiftThatIsNotTheLargestOfItsExponentHasNone) {
  EXPECT_TRUE(repair_of_last(with_body("  %0: f32[64, 1] = max %y {dims = [1], keepdim = true}\n"
                                       "  %1: f32[64, 32] = sub %x, %0\n"
                                       "  %2: f32[64, 32] = exp %1\n"
                                       "  %last: f32[64] = sum %2 {dims = [1], keepdim = false}\n"
                                       "  return %last\n"))
                  .empty());
  EXPECT_TRUE(repair_of_last(with_body("  %0: f32[64, 1] = min %x {dims = [1], keepdim = true}\n"
                                       "  %1: f32[64, 32] = sub %x, %0\n"
                                       "  %2: f32[64, 32] = exp %1\n"
                                       "  %last: f32[64] = sum %2 {dims = [1], keepdim = false}\n"
                                       "  return %last\n"))
                  .empty());
}

std::string squares(const std::string& count, const std::string& square) {
  return with_body("  %c: f32[] = full {value = " + count +
                   "}\n"
                   "  %0: f32[64, 1] = sum %x {dims = [1], keepdim = true}\n"
                   "  %1: f32[64, 1] = div %0, %c\n"
                   "  %2: f32[64, 32] = sub %x, %1\n"
                   "  %3: f32[64, 32] = " +
                   square +
                   "\n"
                   "  %last: f32[64] = sum %3 {dims = [1], keepdim = false}\n"
                   "  return %last\n");
}

TEST(Online, SquaresAroundTheMeanSpread) {
  for (const char* square : {"square %2", "mul %2, %2"}) {
    const Repair repair = repair_of_last(squares("32.0", square));
    ASSERT_EQ(repair.size(), 1u) << square;
    EXPECT_EQ(repair[0].kind, RepairKind::kSpread);
  }
}

TEST(Online, SquaresAroundSomethingElseHaveNone) {
  EXPECT_TRUE(repair_of_last(squares("31.0", "square %2")).empty());
  EXPECT_TRUE(repair_of_last(squares("32.0", "mul %2, %1")).empty());
  EXPECT_TRUE(repair_of_last(squares("32.0", "mul %2, %x")).empty());
}

// Few long rows: passes that need repairs share a kernel, others do not.
TEST(Online, LongRowsAreReducedInOneKernel) {
  const auto groups = [](const std::string& op) {
    const auto graph = parse("graph @g(%x: f32[1000000]) {\n"
                             "  %0: f32[1] = max %x {dims = [0], keepdim = true}\n"
                             "  %1: f32[1000000] = sub %x, %0\n"
                             "  %2: f32[1000000] = " +
                             op +
                             " %1\n"
                             "  %3: f32[] = sum %2 {dims = [0], keepdim = false}\n"
                             "  return %3\n}\n");
    return plan_fusion(*graph, {}).groups.size();
  };
  EXPECT_EQ(groups("exp"), 1u);
  EXPECT_EQ(groups("sin"), 2u);
}

}  // namespace
}  // namespace mlcc::fusion
