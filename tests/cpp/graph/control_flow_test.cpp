#include "graph/control_flow.h"

#include <gtest/gtest.h>

#include "graph/effects.h"
#include "graph/text.h"

namespace mlcc::graph {
namespace {

constexpr const char* kText = R"(graph @f(%p: bool[], %x: f32[4]) {
  %0: f32[4] = extern "cond"(%p, [%x]) random effects regions {
    graph @then(%a: f32[4]) {
      %0: f32[4] = extern "aten.rand_like.default"(%a) random
      return %0
    }
    graph @else(%a: f32[4]) {
      %0: f32[4] = extern "my.fill.default"(%a) mutates(0)
      return %0
    }
  }
  return %0
}
)";

TEST(ControlFlow, a_clone_has_regions_of_its_own) {
  const auto graph = parse_graph(kText);
  const auto copy = graph->clone();
  EXPECT_EQ(print(*copy), print(*graph));
  const auto& regions = copy->nodes()[0]->extern_call().regions;
  for (Node* node : regions[0]->nodes()) node->set_source("changed");
  regions[0]->set_outputs({regions[0]->inputs()[0].get()});
  EXPECT_NE(print(*copy), print(*graph));
}

TEST(ControlFlow, a_call_does_what_its_regions_do) {
  const auto graph = parse_graph(kText);
  const Node* node = graph->nodes()[0];
  const ExternFacts facts = facts_of_regions(node->extern_call().regions);
  EXPECT_TRUE(facts.random);
  EXPECT_TRUE(facts.effects);
  EXPECT_FALSE(is_pure(*node));
  EXPECT_FALSE(control_flow_error(*node).has_value());
}

TEST(ControlFlow, names) {
  EXPECT_EQ(parse_control_flow("scan"), ControlFlow::kScan);
  EXPECT_EQ(parse_control_flow("aten.sin.default"), std::nullopt);
}

}  // namespace
}  // namespace mlcc::graph
