#include "graph/static_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class StaticValuesTest : public ::testing::Test {
 protected:
  // Cuts `text`; what is left is in graph_.
  std::vector<StaticCone> cut(const std::string& text) {
    graph_ = parse_graph(text);
    std::vector<StaticCone> cones = cut_static_values(*graph_);
    verify(*graph_);
    for (const StaticCone& cone : cones) verify(*cone.graph);
    return cones;
  }
  size_t num_cut(const std::string& text) { return cut(text).size(); }

  std::unique_ptr<Graph> graph_;
};

TEST_F(StaticValuesTest, CutsWhatStaticInputsAlonePay) {
  const auto cones = cut(R"(graph @g(%x: f32[s0, 4], %g: f32[8, 1] static, %w: f32[8, 4] static)
                            symbols(s0 in 2..) {
    %0: f32[8, 4] = mul %w, %g
    %1: f32[4, 8] = permute %0 {dims = [1, 0]}
    %2: f32[4, 8] = copy %1
    %3: f32[s0, 8] = extern "aten.mm.default"(%x, %2)
    return %3
  })");
  ASSERT_EQ(cones.size(), 1U);
  EXPECT_EQ(print(*cones[0].graph), R"(graph @kept(%w0: f32[8, 4], %w1: f32[8, 1]) {
  %0: f32[8, 4] = mul %w0, %w1
  %1: f32[4, 8] = permute %0 {dims = [1, 0]}
  %2: f32[4, 8] = copy %1
  return %2
}
)");
  EXPECT_THAT(cones[0].inputs, ElementsAre(2, 1));
  EXPECT_EQ(print(*graph_),
            R"(graph @g(%x: f32[s0, 4], %g: f32[8, 1] static, %w: f32[8, 4] static, )"
            R"(%kept0: f32[4, 8]) symbols(s0 in 2..) {
  %0: f32[s0, 8] = extern "aten.mm.default"(%x, %kept0)
  return %0
}
)");
}

TEST_F(StaticValuesTest, EqualConesPrintEqualText) {
  const auto cones = cut(R"(graph @g(%x: f32[4], %a: f32[4] static, %b: f32[4] static) {
    %0: f32[] = full {value = 2.0}
    %1: f32[4] = exp %b
    %2: f32[4] = exp %a
    %3: f32[4] = div %2, %0
    %4: f32[4] = div %1, %0
    %5: f32[4] = add %x, %3
    %6: f32[4] = sub %5, %4
    return %6
  })");
  ASSERT_EQ(cones.size(), 2U);
  EXPECT_EQ(print(*cones[0].graph), print(*cones[1].graph));
  EXPECT_EQ(graph_->num_nodes(), 2U);
}

TEST_F(StaticValuesTest, NothingWithoutStaticInputs) {
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[4], %w: f32[4]) {
    %0: f32[4] = exp %w
    %1: f32[4] = add %x, %0
    return %1
  })"),
            0U);
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[4], %w: f32[4] static) {
    %0: f32[] = full {value = 2.0}
    %1: f32[] = exp %0
    %2: f32[4] = add %x, %1
    %3: f32[4] = add %2, %w
    return %3
  })"),
            0U);
}

TEST_F(StaticValuesTest, ViewsAndWhatOnlyGrowsAreNotCut) {
  // The expanded sum costs more to read than to compute; below it there are views.
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[8, 8], %r: f32[1, 8] static, %c: f32[8, 1] static) {
    %0: f32[8, 8] = add %r, %c
    %1: f32[8, 8] = permute %0 {dims = [1, 0]}
    %2: f32[8, 8] = add %x, %1
    return %2
  })"),
            0U);
  // Cut below the expand.
  const auto cones = cut(R"(graph @g(%x: f32[8, 8], %r: f32[1, 8] static) {
    %0: f32[1, 8] = exp %r
    %1: f32[8, 8] = expand %0
    %2: f32[8, 8] = extern "aten.mm.default"(%x, %1)
    return %2
  })");
  ASSERT_EQ(cones.size(), 1U);
  EXPECT_THAT(print(*cones[0].graph), HasSubstr("return %0"));
  EXPECT_THAT(print(*graph_), HasSubstr("expand %kept0"));
}

TEST_F(StaticValuesTest, WhatTheCallerGetsIsNotCut) {
  const auto cones = cut(R"(graph @g(%x: f32[8], %w: f32[8] static) {
    %0: f32[8] = exp %w
    %1: f32[8] = sin %0
    %2: f32[2, 4] = reshape %1
    %3: f32[8] = add %x, %1
    return %2, %3
  })");
  ASSERT_EQ(cones.size(), 1U);  // exp; the sine stays, since its view is handed out
  EXPECT_THAT(print(*graph_), HasSubstr("sin %kept0"));
}

TEST_F(StaticValuesTest, WrittenInputsAreNotStatic) {
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[8], %w: f32[8] static) {
    %0: f32[8] = exp %w
    %1: f32[8] = add %x, %0
    %2: f32[8] = extern "aten.copy_.default"(%w, %1, false) mutates(0)
    return %1
  })"),
            0U);
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[8], %w: f32[2, 4] static) {
    %0: f32[2, 4] = exp %w
    %1: f32[8] = reshape %0
    %2: f32[8] = add %x, %1
    %3: f32[8] = reshape %w
    %4: f32[8] = extern "aten.copy_.default"(%3, %2, false) mutates(0)
    return %2
  })"),
            0U);
}

TEST_F(StaticValuesTest, ValuesThatCallsWriteIntoAreNotCut) {
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[8], %w: f32[8] static) {
    %0: f32[8] = exp %w
    %1: f32[8] = extern "aten.add_.Tensor"(%0, %x) mutates(0) aliases
    return %1
  })"),
            0U);
}

TEST_F(StaticValuesTest, CallsWithEffectsAndUnknownSizesStay) {
  EXPECT_EQ(num_cut(R"(graph @g(%x: f32[8], %w: f32[8] static) {
    %0: f32[8] = extern "aten.bernoulli.default"(%w) random
    %1: f32[8] = add %x, %0
    return %1
  })"),
            0U);
  const auto cones = cut(R"(graph @g(%x: f32[s0, 4], %w: f32[16, 4] static) symbols(s0 in 2..16) {
    %0: f32[16, 4] = cos %w
    %1: f32[s0, 4] = slice %0 {dim = 0, start = 0, step = 1}
    %2: f32[s0, 4] = mul %x, %1
    return %2
  })");
  EXPECT_EQ(cones.size(), 1U);
}

TEST_F(StaticValuesTest, PureCallsAreCut) {
  const auto cones = cut(R"(graph @g(%x: f32[8, 8], %a: f32[8, 8] static, %b: f32[8, 8] static) {
    %0: f32[8, 8] = extern "aten.mm.default"(%a, %b)
    %1: f32[8, 8] = extern "aten.mm.default"(%x, %0)
    return %1
  })");
  EXPECT_EQ(cones.size(), 1U);
}

TEST_F(StaticValuesTest, TheFactIsPartOfTheText) {
  const auto graph =
      parse_graph("graph @g(%w: f32[8, 4] strides(1, 8) static) {\n  return %w\n}\n");
  EXPECT_TRUE(graph->inputs()[0]->is_static());
  EXPECT_EQ(print(*graph), "graph @g(%w: f32[8, 4] strides(1, 8) static) {\n  return %w\n}\n");
  EXPECT_EQ(print(*graph->clone()), print(*graph));
  EXPECT_THROW(parse_graph("graph @g(%n: size(4) static) {\n  return\n}\n"), Error);
}

}  // namespace
}  // namespace mlcc::graph
