#include "graph/call_alone.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

// Of the last call of a graph; "" where it cannot stand alone.
std::string alone(const std::string& text) {
  const auto graph = parse_graph(text);
  const Node* call = nullptr;
  for (const Node* node : graph->nodes())
    if (node->op() == Op::kExtern) call = node;
  const auto found = call_alone(*graph, *call);
  if (found == nullptr) return "";
  verify(*found);
  EXPECT_EQ(print(*parse_graph(print(*found))), print(*found));
  return print(*found);
}

TEST(CallAlone, KeepsLayoutsAndWhatIsStatic) {
  EXPECT_EQ(alone(R"(graph @net(%x: f32[4, 64], %w: f32[100, 64] static, %b: f32[100]) {
    %0: f32[4, 64] = relu %x
    %1: f32[64, 100] = permute %w {dims = [1, 0]}
    %2: f32[4, 100] = extern "aten.addmm.default"(%b, %0, %1, alpha = 2)
    %3: f32[4, 100] = relu %2
    return %3
  })"),
            R"(graph @alone(%x0: f32[100], %x1: f32[4, 64], %x2: f32[100, 64] static) {
  %0: f32[64, 100] = permute %x2 {dims = [1, 0]}
  %1: f32[4, 100] = extern "aten.addmm.default"(%x0, %x1, %0, alpha = 2)
  return %1
}
)");
}

TEST(CallAlone, IsTheSameWhereverItStands) {
  const std::string one = alone(R"(graph @a(%x: f32[s7, 64], %w: f32[64, s1])
      symbols(s1 in 2.. hint 50, s7 in 2.. hint 9) {
    %0: f32[s7, s1] = extern "aten.mm.default"(%x, %w)
    return %0
  })");
  const std::string other = alone(R"(graph @b(%y: f32[n1, 64], %x: f32[64, n0])
      symbols(n0 in 2.. hint 50, n1 in 2.. hint 9) {
    %0: f32[n1, 64] = exp %y
    %1: f32[n1, n0] = extern "aten.mm.default"(%0, %x)
    return %1
  })");
  EXPECT_EQ(one, other);
  EXPECT_NE(one.find("symbols(n0 in 2.. hint 9, n1 in 2.. hint 50)"), std::string::npos) << one;
  EXPECT_NE(one.find("%n0: size(n0)"), std::string::npos) << one;
}

TEST(CallAlone, RepeatsElementsAndOperands) {
  const std::string text = alone(R"(graph @net(%x: f32[8, 8], %b: f32[8]) {
    %0: f32[8, 8] = expand %b
    %1: f32[8, 8] = extern "aten.addmm.default"(%0, %x, %x)
    return %1
  })");
  EXPECT_NE(text.find("%x0: f32[8, 1]"), std::string::npos) << text;  // strides 0 and 1
  EXPECT_NE(text.find("(%1, %x1, %x1)"), std::string::npos) << text;
}

TEST(CallAlone, IsNotForAll) {
  // Elements apart.
  EXPECT_EQ(alone(R"(graph @net(%x: f32[8, 16], %w: f32[8, 8]) {
    %0: f32[8, 8] = slice %x {dim = 1, start = 0, step = 2}
    %1: f32[8, 8] = extern "aten.mm.default"(%0, %w)
    return %1
  })"),
            "");
  // It writes.
  EXPECT_EQ(alone(R"(graph @net(%x: f32[8], %w: f32[8]) {
    %0: f32[8] = extern "aten.copy_.default"(%x, %w, false) mutates(0)
    return %0
  })"),
            "");
}

}  // namespace
}  // namespace mlcc::graph
