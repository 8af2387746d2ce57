#include "fusion/fusion.h"

#include <gtest/gtest.h>

#include "graph/text.h"

namespace mlcc::fusion {
namespace {

FusionPlan plan(const std::unique_ptr<graph::Graph>& graph) { return plan_fusion(*graph, {}); }

TEST(Fusion, AProducerJoinsItsReader) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 4]) {
  %0: f32[8, 4] = neg %x
  %1: f32[8, 4] = abs %0
  return %1
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.groups.size(), 1u);
  EXPECT_EQ(found.inlined.size(), 1u);
  EXPECT_EQ(found.groups[0].ideal_bytes, SymExpr(2 * 32 * 4));
}

TEST(Fusion, AGroupRunsOnOneDevice) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8] @cuda:0, %y: f32[8]) {
  %0: f32[8] @cuda:0 = neg %x
  %1: f32[8] = neg %y
  %2: f32[8] @cuda:0 = exp %x
  return %0, %1, %2
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.groups.size(), 2u);
  EXPECT_EQ(found.groups[0].device.str(), "cuda:0");
  EXPECT_EQ(found.groups[0].nodes.size(), 2u);
  EXPECT_EQ(found.groups[1].device.str(), "cpu");
}

// Rows are taken, then elements of them: nothing between is written, and two such reads share a
// kernel.
TEST(Fusion, ATakeOfATakeIsOneKernel) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 4], %i: i64[6], %j: i64[5]) {
  %0: f32[6, 4] = take %x, %i {dim = 0, error = "none", wrap = false}
  %1: f32[6, 5] = take %0, %j {dim = 1, error = "none", wrap = false}
  %2: f32[8, 5] = take %x, %j {dim = 1, error = "none", wrap = false}
  %3: f32[6, 5] = take %2, %i {dim = 0, error = "none", wrap = false}
  %4: f32[6, 5] = add %1, %3
  %5: f32[6, 5] = mul %1, %4
  return %5
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.groups.size(), 1u);
  EXPECT_EQ(found.groups[0].inputs.size(), 3u);
}

// What the host's number comes from is computed beside its reader if it is of single elements.
TEST(Fusion, AHostNumberEntersAKernelOfAnotherDevice) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8] @cuda:0, %a: f64[], %b: f32[1]) {
  %0: f32[] = cast %a
  %1: f32[] = reshape %b
  %2: f32[] = mul %0, %1
  %3: f32[8] @cuda:0 = add %x, %2
  return %3
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.groups.size(), 1u);
  EXPECT_EQ(found.groups[0].device.str(), "cuda:0");
  EXPECT_EQ(found.groups[0].inputs.size(), 3u);
  EXPECT_TRUE(found.copied.empty());
}

TEST(Fusion, TheHostComputesANumberThatComesFromATensor) {
  for (const bool fuse : {true, false}) {
    const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8] @cuda:0, %y: f32[64]) {
  %0: f32[1] = slice %y {dim = 0, start = 3, step = 1}
  %1: f32[] = reshape %0
  %2: f32[8] @cuda:0 = add %x, %1
  %3: f32[] = sum %y {dims = [0], keepdim = false}
  %4: f32[] = neg %1
  %5: f32[] = mul %3, %4
  %6: f32[8] @cuda:0 = mul %2, %5
  return %6
})");
    FusionOptions options;
    options.fuse = fuse;
    const FusionPlan found = plan_fusion(*graph, options);
    EXPECT_EQ(found.copied.size(), 1u);
    for (const Group& group : found.groups)
      for (const graph::Value* input : group.inputs)
        EXPECT_TRUE(input->type().device == group.device || input->type().shape.empty());
    size_t on_gpu = 0;
    for (const Group& group : found.groups) on_gpu += group.device.str() == "cuda:0" ? 1 : 0;
    EXPECT_EQ(on_gpu, fuse ? 1u : 2u);
  }
}

TEST(Fusion, AnExternBetweenTwoNodesKeepsThemApart) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = neg %x
  %1: f32[8, 8] = extern "aten.mm.default"(%0, %y)
  %2: f32[8, 8] = add %0, %1
  return %2
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.groups.size(), 2u);
  ASSERT_EQ(found.order.size(), 3u);
  EXPECT_EQ(found.order[1].group, -1);
}

// Of a bf16 weight, say: cheaper than a kernel of its own and twice the bytes.
TEST(Fusion, AWideningCastIsRepeatedByABroadcast) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 4], %w: bf16[4], %v: f64[4]) {
  %0: f32[4] = cast %w
  %1: f32[8, 4] = expand %0
  %2: f32[8, 4] = mul %x, %1
  %3: f32[4] = cast %v
  %4: f32[8, 4] = expand %3
  %5: f32[8, 4] = mul %2, %4
  return %5
})");
  const FusionPlan found = plan(graph);
  EXPECT_TRUE(found.inlined.count(graph->nodes()[0]));
  EXPECT_FALSE(found.inlined.count(graph->nodes()[3]));  // f64 is narrowed once
}

TEST(Fusion, WhatReadsAfterAWriteDoesNotJoinWhatReadBefore) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[64], %y: f32[64]) {
  %0: f32[64] = neg %x
  extern "aten.copy_.default"(%x, %y) mutates(0)
  %1: f32[64] = abs %x
  return %0, %1
})");
  const FusionPlan found = plan(graph);
  ASSERT_EQ(found.order.size(), 3u);
  EXPECT_EQ(found.order[0].group, 0);
  EXPECT_EQ(found.order[1].group, -1);
  EXPECT_EQ(found.order[2].group, 1);
}

TEST(Fusion, WhatIsOverwrittenBeforeItsReaderIsNotInlined) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = neg %x
  %1: f32[8, 8] = permute %x {dims = [1, 0]}
  extern "aten.copy_.default"(%x, %y) mutates(0)
  %2: f32[8, 8] = abs %0
  extern "aten.copy_.default"(%y, %1) mutates(0)
  return %2
})");
  const FusionPlan found = plan(graph);
  EXPECT_TRUE(found.inlined.empty());
  EXPECT_EQ(found.copied.size(), 1u);
  ASSERT_FALSE(found.order.empty());
  EXPECT_EQ(found.order[0].group, 0);
}

TEST(Fusion, AWideChainIsPlannedInLinearTime) {
  std::string text = "graph @g(%x: f32[64]) {\n";
  std::string last = "%x";
  for (int i = 0; i < 400; ++i) {
    const std::string name = "%" + std::to_string(i);
    text += "  " + name + ": f32[64] = clamp " + last + ", " + last + ", " + last + "\n";
    last = name;
  }
  EXPECT_FALSE(plan(graph::parse_graph(text + "  return " + last + "\n}")).groups.empty());
}

TEST(Fusion, TheCodeOfAKernelIsBounded) {
  std::string text = "graph @g(%x: f32[64], %y: f32[64]) {\n";
  std::string last = "%x";
  for (int i = 0; i < 100; ++i) {
    const std::string name = "%" + std::to_string(i);
    text += "  " + name + ": f32[64] = add " + last + ", %y\n";
    last = name;
  }
  const auto graph = graph::parse_graph(text + "  return " + last + "\n}");
  FusionOptions options;
  options.ops_of = [](const graph::Node&) { return 10; };
  EXPECT_EQ(plan_fusion(*graph, options).groups.size(), 1u);
  options.max_ops = 600;
  EXPECT_EQ(plan_fusion(*graph, options).groups.size(), 2u);
}

TEST(Fusion, NestedReshapesAreCopiedNowAndThen) {
  std::string text = "graph @g(%x: f32[315]) {\n";
  std::string last = "%x";
  for (int i = 0; i < 20; ++i) {
    const auto name = [&](int k) { return "%" + std::to_string(3 * i + k); };
    text += "  " + name(0) + ": f32[7, 9, 5] = reshape " + last + "\n";
    text += "  " + name(1) + ": f32[5, 7, 9] = permute " + name(0) + " {dims = [2, 0, 1]}\n";
    text += "  " + name(2) + ": f32[315] = reshape " + name(1) + "\n";
    last = name(2);
  }
  text += "  %60: f32[315] = exp " + last + "\n  return %60\n}";
  const FusionPlan found = plan(graph::parse_graph(text));
  EXPECT_GE(found.copied.size(), 7u);
  EXPECT_EQ(found.order.size(), found.groups.size());
}

TEST(Fusion, DifferentRowsAreDifferentKernels) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 4]) {
  %0: f32[8] = sum %x {dims = [1], keepdim = false}
  %1: f32[4] = sum %x {dims = [0], keepdim = false}
  return %0, %1
})");
  EXPECT_EQ(plan(graph).groups.size(), 2u);
}

// As many elements in both, none, but what is reduced from one of them has two.
TEST(Fusion, ShapesWithoutElementsAreNotTheSame) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[0, 1], %y: f32[0, 2]) {
  %0: f32[0, 1] = exp %x
  %1: f32[0, 2] = add %y, %0
  %2: f32[2] = sum %1 {dims = [0], keepdim = false}
  return %0, %2
})");
  const FusionPlan fused = plan(graph);
  ASSERT_EQ(fused.groups.size(), 2u);
  EXPECT_TRUE(fused.groups[1].domain[1].equals_constant(2));
}

TEST(Fusion, ARowTooLongForTheCacheIsNotKept) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[2, 1000000]) {
  %0: f32[2, 1] = max %x {dims = [1], keepdim = true}
  %1: f32[2, 1000000] = sub %x, %0
  return %1
})");
  EXPECT_EQ(plan(graph).groups.size(), 2u);
}

TEST(Fusion, AReadUnderAnotherIndexIsAnotherKernel) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[6, 6]) {
  %0: f32[6, 6] = exp %x
  %1: f32[6, 6] = permute %0 {dims = [1, 0]}
  %2: f32[6, 6] = add %0, %1
  return %2
})");
  const FusionPlan found = plan(graph);
  EXPECT_EQ(found.groups.size(), 2u);
  ASSERT_FALSE(found.reasons.empty());
  EXPECT_NE(found.reasons[0].find("another place"), std::string::npos);
}

TEST(Fusion, AWriteIntoAnInputComesAfterItsReads) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[4], %y: f32[4]) {
  %0: f32[4] = extern "aten.copy_.default"(%x, %y, false) mutates(0)
  %1: f32[4] = neg %y
  return %1
})");
  EXPECT_EQ(plan(graph).order.size(), 2u);
  const auto reads_first = graph::parse_graph(R"(graph @g(%x: f32[4], %y: f32[4]) {
  %0: f32[4] = neg %x
  %1: f32[4] = extern "aten.copy_.default"(%x, %y, false) mutates(0)
  return %0
})");
  const FusionPlan found = plan(reads_first);
  ASSERT_EQ(found.order.size(), 2u);
  EXPECT_EQ(found.order[0].group, 0);
}

TEST(Fusion, ViewsCostNoKernel) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[4, 6]) {
  %0: f32[6, 4] = permute %x {dims = [1, 0]}
  %1: f32[3, 4] = slice %0 {dim = 0, start = 1, step = 2}
  return %1
})");
  EXPECT_TRUE(plan(graph).groups.empty());
}

TEST(Fusion, SiblingsThatReadTheSameDataShareAKernel) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[64, 64]) {
  %0: f32[64, 64] = neg %x
  %1: f32[64, 64] = abs %x
  return %0, %1
})");
  EXPECT_EQ(plan(graph).groups.size(), 1u);
}

TEST(Fusion, WhatFollowsAContractionIsWrittenIntoWhatItIsPaddedTo) {
  const std::string contraction = R"(graph @g(%x: f32[2, 8, 8, 16], %w: f32[1, 16, 32]) {
  %0: f32[2, 8, 8, 32] = contract %x, %w {lhs = [d0, d1, d2, d4], reduced = [16], rhs = [floordiv(d3, 32), d4, mod(d3, 32)]}
  %1: f32[2, 8, 8, 32] = relu %0
)";
  const std::string pads = R"(  %2: f32[2, 10, 8, 32] = pad %1 {before = 1, dim = 1, value = 0.0}
  %3: f32[2, 10, 11, 32] = pad %2 {before = 1, dim = 2, value = 0.0}
)";
  const auto graph = graph::parse_graph(contraction + pads + "  return %3\n}");
  const FusionPlan inside = plan(graph);
  ASSERT_EQ(inside.groups.size(), 1u);
  EXPECT_TRUE(inside.groups[0].placements.at(inside.groups[0].nodes.back()).has_border);
  EXPECT_EQ(inside.groups[0].outputs.size(), 1u);
  const FusionPlan both = plan(graph::parse_graph(contraction + pads + "  return %1, %3\n}"));
  ASSERT_EQ(both.groups.size(), 1u);
  EXPECT_EQ(both.groups[0].outputs.size(), 2u);
  // What is cut off, or moved, is copied.
  for (const char* copied :
       {"  %3: f32[2, 8, 8, 32] = pad %1 {before = -1, dim = 1, value = 0.0}\n",
        "  %3: f32[2, 8, 8, 32] = pad %1 {before = 1, dim = 1, value = 0.0}\n",
        "  %2: f32[2, 7, 8, 32] = slice %1 {dim = 1, start = 1, step = 1}\n"
        "  %3: f32[2, 9, 8, 32] = pad %2 {before = 2, dim = 1, value = 0.0}\n",
        "  %2: f32[2, 8, 8, 32] = permute %1 {dims = [0, 2, 1, 3]}\n"
        "  %3: f32[2, 9, 8, 32] = pad %2 {before = 1, dim = 1, value = 0.0}\n"}) {
    const FusionPlan apart = plan(graph::parse_graph(contraction + copied + "  return %3\n}"));
    EXPECT_EQ(apart.groups.size(), 2u) << copied;
  }
}

size_t softmax_kernels(const std::string& shape, int dim, const FusionOptions& options,
                       const std::string& device = "") {
  const std::string type = "f32[" + shape + "]" + device;
  const std::string dims = " {dims = [" + std::to_string(dim);
  const std::string row = (dim == 1 ? "f32[" + shape.substr(0, shape.find(',')) + ", 1]"
                                    : "f32[1" + shape.substr(shape.find(',')) + "]") +
                          device;
  const auto graph = graph::parse_graph(
      "graph @g(%x: " + type + ") {\n  %0: " + row + " = max %x" + dims + "], keepdim = true}\n" +
      "  %1: " + type + " = sub %x, %0\n  %2: " + type + " = exp %1\n  %3: " + row + " = sum %2" +
      dims + "], keepdim = true}\n  %4: " + type + " = div %2, %3\n  return %4\n}");
  return plan_fusion(*graph, options).groups.size();
}

TEST(Fusion, LongRowsShareAKernelWhereTheyAreShortEnoughOrMany) {
  EXPECT_EQ(softmax_kernels("1, 65536", 1, {}), 1u);   // a second-level cache holds it
  EXPECT_EQ(softmax_kernels("15, 65537", 1, {}), 2u);  // too few for the threads of a machine
  EXPECT_EQ(softmax_kernels("16, 300000", 1, {}), 1u);
  EXPECT_EQ(softmax_kernels("30000, 256", 0, {}), 2u);  // columns
  const char* on = " @cuda:0";
  FusionOptions gpu;
  gpu.row_limits = [](const Device&) {
    return RowLimits{.block_bytes = 200 * 1024, .enough_rows = 100};
  };
  EXPECT_EQ(softmax_kernels("1, 30000", 1, gpu, on), 1u);  // fits a block
  EXPECT_EQ(softmax_kernels("100, 300000", 1, gpu, on), 1u);
  EXPECT_EQ(softmax_kernels("99, 300000", 1, gpu, on), 3u);  // too few rows for all of the machine
  EXPECT_EQ(softmax_kernels("30000, 256", 0, gpu, on), 3u);  // columns: no block works for one
}

// A transposed copy reads or writes across what a reduction goes along, and would fall apart.
TEST(Fusion, ATransposedCopyStandsBesideReductions) {
  const std::string copy = "  %t: f32[32, 64] strides(1, 32) = permute %x {dims = [1, 0]}\n"
                           "  %0: f32[32, 64] = copy %t\n";
  for (const char* sum : {"  %1: f32[32] = sum %x {dims = [0], keepdim = false}\n",
                          "  %1: f32[64] = sum %x {dims = [1], keepdim = false}\n"}) {
    for (const std::string& nodes : {copy + sum, sum + copy}) {
      const auto graph =
          graph::parse_graph("graph @g(%x: f32[64, 32]) {\n" + nodes + "  return %0, %1\n}");
      EXPECT_EQ(plan_fusion(*graph, FusionOptions()).groups.size(), 2u) << nodes;
    }
  }
}

// So does what follows a reduction and lies across what it reads: it transposes as it loads.
TEST(Fusion, AResultThatLiesAcrossWhatItReadsFollowsReductionsApart) {
  const auto groups = [](const std::string& strides) {
    const auto graph =
        graph::parse_graph("graph @g(%x: f32[2, 32, 64] strides(2048, 1, 32)) {\n"
                           "  %0: f32[1, 32, 1] = max %x {dims = [0, 2], keepdim = true}\n"
                           "  %1: f32[2, 32, 64]" +
                           strides + " = sub %x, %0\n  return %1\n}");
    return plan_fusion(*graph, FusionOptions()).groups.size();
  };
  EXPECT_EQ(groups(""), 2u);
  EXPECT_EQ(groups(" strides(2048, 1, 32)"), 1u);
}

// So it does beside what only goes through the same tensor, unless all elements come in order.
TEST(Fusion, ATransposedCopyStandsBesideWhatRunsInOrder) {
  const std::string exp = "  %0: f32[s0, s1] = exp %x\n";
  const std::string copy = "  %t: f32[s1, s0] strides(1, s1) = permute %x {dims = [1, 0]}\n"
                           "  %1: f32[s1, s0] = copy %t\n";
  const std::string flat = "  %t: f32[s0*s1] = reshape %x\n  %1: f32[s0*s1] = neg %t\n";
  const auto groups = [](const std::string& nodes) {
    const auto graph = graph::parse_graph("graph @g(%x: f32[s0, s1]) symbols(s0, s1) {\n" + nodes +
                                          "  return %0, %1\n}");
    return plan_fusion(*graph, FusionOptions()).groups.size();
  };
  EXPECT_EQ(groups(exp + copy), 2u);
  EXPECT_EQ(groups(exp + flat), 1u);
  EXPECT_EQ(groups(flat + exp), 1u);
}

// Columns are gone through a few rows at a time, which is no way to write a large result: it takes
// turns with them instead, whichever comes first.
TEST(Fusion, ALargeResultStandsBesideColumnSums) {
  const auto plan_of = [](const std::string& nodes, int64_t of_value) {
    const auto graph = graph::parse_graph("graph @g(%x: f32[64, 32]) {\n" + nodes + "}");
    FusionOptions options;
    options.waves.of_value = of_value;
    return plan_fusion(*graph, options);
  };
  const std::string exp = " = exp %x\n", sum = " = sum %x {dims = [0], keepdim = false}\n";
  const std::string ahead = "  %0: f32[64, 32]" + exp + "  %1: f32[32]" + sum + "  return %0, %1\n";
  const std::string behind =
      "  %0: f32[32]" + sum + "  %1: f32[64, 32]" + exp + "  return %0, %1\n";
  for (const std::string& nodes : {ahead, behind}) {
    const FusionPlan large = plan_of(nodes, 64 * 32 * 4 - 1);
    ASSERT_EQ(large.groups.size(), 2u);
    EXPECT_TRUE(large.order[1].in_turns);
    EXPECT_NE(large.reasons.at(0).find("had better be apart"), std::string::npos);
    EXPECT_EQ(plan_of(nodes, 64 * 32 * 4).groups.size(), 1u);
    EXPECT_EQ(plan_of(nodes, 0).groups.size(), 1u);
  }
  // What the sums need, or what needs them, stays with them; so do sums along rows.
  const std::string needed = "  %0: f32[64, 32] = exp %x\n"
                             "  %1: f32[32] = sum %0 {dims = [0], keepdim = false}\n"
                             "  return %0, %1\n";
  const std::string needing = "  %0: f32[1, 32] = max %x {dims = [0], keepdim = true}\n"
                              "  %1: f32[64, 32] = sub %x, %0\n  return %1\n";
  const std::string rows = "  %0: f32[64, 32] = exp %x\n"
                           "  %1: f32[64] = sum %x {dims = [1], keepdim = false}\n"
                           "  return %0, %1\n";
  for (const std::string& nodes : {needed, needing, rows})
    EXPECT_EQ(plan_of(nodes, 1).groups.size(), 1u) << nodes;
}

}  // namespace
}  // namespace mlcc::fusion
