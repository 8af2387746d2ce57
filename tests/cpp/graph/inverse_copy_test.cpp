#include "graph/inverse_copy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

std::string inverse_of(const std::string& text) {
  const std::unique_ptr<Graph> inverse = inverse_of_copy(*parse_graph(text));
  if (inverse == nullptr) return "none";
  verify(*inverse);
  return print(*inverse);
}

TEST(InverseCopyTest, UndoesEachStep) {
  EXPECT_EQ(inverse_of(R"(graph @kept(%w0: f32[333, 256]) {
  %0: f32[256, 333] strides(1, 256) = permute %w0 {dims = [1, 0]}
  %1: f32[256, 352] = pad %0 {before = 0, dim = 1, value = 0.0}
  %2: f32[256, 11, 32] = reshape %1
  %3: f32[11, 256, 32] = permute %2 {dims = [1, 0, 2]}
  %4: f32[11, 256, 32] = copy %3
  return %4
})"),
            R"(graph @kept(%x: f32[11, 256, 32]) {
  %0: f32[256, 11, 32] = permute %x {dims = [1, 0, 2]}
  %1: f32[256, 352] = reshape %0
  %2: f32[256, 333] = slice %1 {dim = 1, start = 0, step = 1}
  %3: f32[333, 256] = permute %2 {dims = [1, 0]}
  %4: f32[333, 256] = copy %3
  return %4
}
)");
}

TEST(InverseCopyTest, KeepsTheStridesOfWhatIsCopied) {
  EXPECT_THAT(inverse_of(R"(graph @kept(%w0: f32[8, 4] strides(1, 8)) {
  %0: f32[4, 8] = permute %w0 {dims = [1, 0]}
  %1: f32[4, 8] = copy %0
  return %1
})"),
              ::testing::HasSubstr("f32[8, 4] strides(1, 8) = copy"));
}

TEST(InverseCopyTest, NothingUndoesArithmeticOrWhatDropsElements) {
  EXPECT_EQ(inverse_of(R"(graph @kept(%w0: f32[8]) {
  %0: f32[8] = exp %w0
  return %0
})"),
            "none");
  EXPECT_EQ(inverse_of(R"(graph @kept(%w0: f32[8]) {
  %0: f32[4] = slice %w0 {dim = 0, start = 0, step = 1}
  %1: f32[4] = copy %0
  return %1
})"),
            "none");
  EXPECT_EQ(inverse_of(R"(graph @kept(%w0: f32[8]) {
  %0: f32[6] = pad %w0 {before = -2, dim = 0, value = 0.0}
  %1: f32[6] = copy %0
  return %1
})"),
            "none");
  EXPECT_EQ(inverse_of(R"(graph @kept(%w0: f32[8], %w1: f32[8]) {
  %0: f32[8] = add %w0, %w1
  return %0
})"),
            "none");
}

}  // namespace
}  // namespace mlcc::graph
