#include "lower/in_place.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"
#include "loop/text.h"

namespace mlcc::lower {
namespace {

struct Lowered {
  bool is_safe;
  std::string text;
};

// The only kernel of a graph, its last output in the place of its first input.
Lowered lower_in_place(const std::string& text) {
  const auto graph = graph::parse_graph(text);
  fusion::FusionPlan plan = fusion::plan_fusion(*graph, {});
  EXPECT_EQ(plan.groups.size(), 1U);
  fusion::Group& group = plan.groups[0];
  group.in_place[group.outputs.back()] = graph->inputs()[0].get();
  loop::Arena arena;
  const LoweredKernel lowered = lower_group(*graph, plan, group, {}, arena);
  return {is_safe_in_place(group, lowered), loop::print(lowered.kernel)};
}

TEST(InPlace, ElementByElement) {
  const Lowered found = lower_in_place(R"(graph @g(%x: f32[64], %y: f32[64]) {
  %0: f32[64] = add %x, %y
  return %0
})");
  EXPECT_TRUE(found.is_safe);
  EXPECT_NE(found.text.find("(%b0: inout f32[64], %b1: in f32[64])"), std::string::npos)
      << found.text;
}

TEST(InPlace, NotInAnotherOrder) {
  EXPECT_FALSE(lower_in_place(R"(graph @g(%x: f32[64]) {
  %0: f32[64] = flip %x {dims = [0]}
  %1: f32[64] = exp %0
  return %1
})")
                   .is_safe);
}

TEST(InPlace, NotWhereAPassBeforeReadTheRow) {
  EXPECT_FALSE(lower_in_place(R"(graph @g(%x: f32[8, 64]) {
  %0: f32[8, 1] = max %x {dims = [1], keepdim = true}
  %1: f32[8, 64] = expand %0
  %2: f32[8, 64] = sub %x, %1
  return %2
})")
                   .is_safe);
}

TEST(InPlace, NotWhereACheckMayStopHalfway) {
  EXPECT_FALSE(lower_in_place(R"(graph @g(%x: f32[64], %i: i64[64], %w: f32[9]) {
  %0: f32[64] = take %w, %i {dim = 0, wrap = true, error = "index"}
  %1: f32[64] = add %x, %0
  return %1
})")
                   .is_safe);
}

TEST(InPlace, AnUpdateCopiesNoBase) {
  const Lowered found = lower_in_place(R"(graph @g(%x: f32[8, 64], %i: i64[2], %y: f32[2, 64]) {
  %0: f32[8, 64] = index_put %x, %i, %y {dim = 0, combine = "add", ordered = false, wrap = false, error = "index_add"}
  return %0
})");
  EXPECT_TRUE(found.is_safe);
  EXPECT_EQ(found.text.find("barrier"), std::string::npos) << found.text;
}

TEST(InPlace, NotAnUpdateByItsOwnElements) {
  EXPECT_FALSE(lower_in_place(R"(graph @g(%x: f32[8, 64], %i: i64[2]) {
  %0: f32[2, 64] = slice %x {dim = 0, start = 0, step = 1}
  %1: f32[8, 64] = index_put %x, %i, %0 {dim = 0, combine = "add", ordered = false, wrap = false, error = "index_add"}
  return %1
})")
                   .is_safe);
}

TEST(InPlace, NotAnUpdateOfAnotherBaseByTheInput) {
  for (const std::string_view dim : {"0", "1"})
    EXPECT_FALSE(lower_in_place("graph @g(%x: f32[8, 8]) {\n"
                                "  %0: i64[8] = iota {start = 0, step = 1}\n"
                                "  %1: f32[8, 8] = add %x, %x\n"
                                "  %2: f32[8, 8] = neg %x\n"
                                "  %3: f32[8, 8] = index_put %1, %0, %2 {dim = " +
                                std::string(dim) +
                                ", combine = \"add\", ordered = false, wrap = false, error = "
                                "\"none\"}\n"
                                "  return %3\n}\n")
                     .is_safe);
}

}  // namespace
}  // namespace mlcc::lower
