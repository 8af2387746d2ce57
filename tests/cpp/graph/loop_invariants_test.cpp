#include "graph/loop_invariants.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

// The graph's text when what its first scan repeats is hoisted.
std::string hoisted(const std::string& text) {
  const std::unique_ptr<Graph> graph = parse_graph(text);
  for (Node* node : graph->nodes())
    if (is_scan(*node)) {
      hoist_loop_invariants(*graph, node);
      break;
    }
  verify(*graph);
  return print(*graph);
}

TEST(LoopInvariantsTest, CopiesOfWhatEveryRoundGetsAreMadeInFrontOfTheScan) {
  EXPECT_EQ(hoisted(R"(graph @g(%a: f32[2], %x: f32[s0, 2], %w: f32[2, 3]) symbols(s0 in 1..) {
    %h: f32[2], %ys: f32[s0, 3, 2] = extern "scan"([%a], [%x], [s0, %w]) regions {
      graph @body(%h: f32[2], %x: f32[2], %n: size(t0), %w: f32[2, 3] static) symbols(t0) {
        %0: f32[3, 2] = permute %w {dims = [1, 0]}
        %1: f32[3, 2] = copy %0
        %2: f32[2] = add %h, %x
        %3: f32[3, 2] = add %2, %1
        return %2, %3
      }
    }
    return %h, %ys
  })"),
            R"(graph @g(%a: f32[2], %x: f32[s0, 2], %w: f32[2, 3]) symbols(s0 in 1..) {
  %0: f32[3, 2] = permute %w {dims = [1, 0]}
  %1: f32[3, 2] = copy %0
  %2: f32[2], %3: f32[s0, 3, 2] = extern "scan"([%a], [%x], [s0, %w, %1]) regions {
    graph @body(%h: f32[2], %x: f32[2], %n: size(t0), %w: f32[2, 3] static, %kept0: f32[3, 2]) symbols(t0) {
      %0: f32[2] = add %h, %x
      %1: f32[3, 2] = add %0, %kept0
      return %0, %1
    }
  }
  return %2, %3
}
)");
}

TEST(LoopInvariantsTest, NothingElseIsHoisted) {
  const std::string text = R"(graph @g(%a: f32[2], %x: f32[4, 2], %w: f32[2], %p: bool[]) {
  %0: f32[2], %1: f32[4, 2] = extern "scan"([%a], [%x], [%w]) regions {
    graph @body(%h: f32[2], %x: f32[2], %w: f32[2]) {
      %0: f32[2] = exp %w
      %1: f32[2] = add %h, %0
      return %1, %x
    }
  }
  %2: f32[2] = extern "cond"(%p, [%0]) regions {
    graph @then(%a: f32[2]) {
      return %a
    }
    graph @else(%a: f32[2]) {
      %0: f32[2] = neg %a
      return %0
    }
  }
  return %2, %1
}
)";
  EXPECT_EQ(hoisted(text), text);
  const std::unique_ptr<Graph> graph = parse_graph(text);
  for (const Node* node : graph->nodes())
    EXPECT_EQ(is_scan(*node), node->extern_call().name == "scan");
}

}  // namespace
}  // namespace mlcc::graph
