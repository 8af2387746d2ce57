#include "graph/passes/pipeline.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::string_view kText = R"(graph @g(%x: f32[4]) {
  %0: f32[] = full {value = 1.0}
  %1: f32[4] = mul %x, %0
  %2: f32[4] = exp %1
  %3: f32[4] = exp %x
  %4: f32[4] = add %2, %3
  %5: f32[4] = log %4
  return %4
}
)";

TEST(Pipeline, passes_are_found_by_name) {
  for (const PassInfo& info : all_passes()) {
    EXPECT_EQ(parse_pass(info.name), info.pass);
    EXPECT_FALSE(info.summary.empty());
  }
  EXPECT_EQ(parse_pass("pipeline"), std::nullopt);
}

TEST(Pipeline, rewrites_to_a_fixed_point) {
  const auto graph = parse_graph(kText);
  PipelineOptions options;
  options.verify = true;
  run_pipeline(*graph, options);
  EXPECT_EQ(print(*graph), "graph @g(%x: f32[4]) {\n"
                           "  %0: f32[4] = exp %x\n"
                           "  %1: f32[4] = add %0, %0\n"
                           "  return %1\n}\n");
  bool has_changed = false;
  options.report = [&](const PassReport& report) { has_changed |= report.has_changed; };
  run_pipeline(*graph, options);
  EXPECT_FALSE(has_changed);
}

TEST(Pipeline, reports_and_dumps_what_changed) {
  const auto graph = parse_graph(kText);
  std::vector<std::string> ran, dumped, reasons;
  int64_t rewrites = 0;
  PipelineOptions options;
  options.report = [&](const PassReport& report) {
    ran.emplace_back(report.name);
    rewrites += report.rewrites;
    EXPECT_EQ(report.has_changed, report.rewrites > 0);
    EXPECT_GE(report.seconds, 0);
  };
  options.dump = [&](std::string_view pass, const Graph&) { dumped.emplace_back(pass); };
  options.on_no_match = [&](std::string_view, const Node&, std::string_view reason) {
    reasons.emplace_back(reason);
  };
  PassRunner runner(*graph, options);
  EXPECT_FALSE(runner.run(Pass::kFoldConstants));
  EXPECT_TRUE(runner.run(Pass::kCanonicalize));
  EXPECT_TRUE(runner.run(Pass::kDce));
  EXPECT_THAT(ran, ElementsAre("fold_constants", "canonicalize", "dce"));
  EXPECT_THAT(dumped, ElementsAre("canonicalize", "dce"));
  EXPECT_THAT(reasons, Contains(HasSubstr("no operand is the neutral element")));
  EXPECT_EQ(rewrites, 3);  // x * 1, the log and the 1 that nobody reads
  EXPECT_EQ(runner.rewrites(), 3);
}

// Every prefix of the rewrites is a right graph: that is what makes bisection work.
TEST(Pipeline, stops_after_any_number_of_rewrites) {
  std::vector<std::string> texts;
  for (int64_t limit = 0; limit < 6; ++limit) {
    const auto graph = parse_graph(kText);
    PipelineOptions options;
    options.verify = true;
    options.bisect = limit;
    run_pipeline(*graph, options);
    texts.push_back(print(*graph));
  }
  EXPECT_EQ(texts[0], kText);
  EXPECT_NE(texts[1], texts[0]);
  EXPECT_NE(texts[3], texts[2]);
  EXPECT_EQ(texts[4], texts[5]);  // four rewrites in all
}

}  // namespace
}  // namespace mlcc::graph
