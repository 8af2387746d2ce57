#include "graph/strided_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

using ::testing::ElementsAre;

const SymExpr s0 = SymExpr::symbol("s0");

class StridedViewTest : public ::testing::Test {
 protected:
  Value* input(std::vector<SymExpr> shape, std::vector<SymExpr> strides = {}) {
    return graph_.add_input("x" + std::to_string(next_++),
                            {DType::kF32, std::move(shape), std::move(strides)});
  }

  // "x0[24] strides(1) offset 3", with the base's name or id first.
  static std::string view(Value* value) {
    const StridedView view = *strided_view(value);
    EXPECT_EQ(view.shape, value->type().shape);
    const auto list = [](const std::vector<SymExpr>& all) {
      std::string text;
      for (const SymExpr& e : all) text += (text.empty() ? "" : ", ") + e.str();
      return text;
    };
    const std::string base = view.base == value          ? "itself"
                             : view.base->name().empty() ? "node"
                                                         : view.base->name();
    return base + " (" + list(view.strides) + ") + " + view.offset.str();
  }

  Graph graph_;
  int next_ = 0;
};

TEST_F(StridedViewTest, materialized_values_are_their_own_base) {
  EXPECT_EQ(view(input({2, 3})), "itself (3, 1) + 0");
  EXPECT_EQ(view(input({2, 3}, {1, 2})), "itself (1, 2) + 0");
  Value* y = graph_.pointwise(Op::kExp, {input({s0, 3})});
  EXPECT_EQ(view(y), "itself (3, 1) + 0");
  EXPECT_EQ(view(graph_.permute(y, {1, 0})), "node (1, 3) + 0");
  EXPECT_EQ(strided_view(graph_.add_size_input("n", s0)), std::nullopt);
}

TEST_F(StridedViewTest, permute_expand_slice) {
  Value* x = input({2, s0, 4});
  EXPECT_EQ(view(graph_.permute(x, {2, 0, 1})), "x0 (1, s0*4, 4) + 0");
  EXPECT_EQ(view(graph_.slice(x, 1, 1, s0 - 1, 1)), "x0 (s0*4, 4, 1) + 4");
  EXPECT_EQ(view(graph_.slice(graph_.slice(x, 2, 1, 2, 2), 0, 1, 1, 1)),
            "x0 (s0*4, 4, 2) + s0*4 + 1");
  EXPECT_EQ(view(graph_.expand(input({1, 3}), {5, 2, 3})), "x1 (0, 0, 1) + 0");
  EXPECT_EQ(view(graph_.expand(input({s0, 1}), {s0, s0})), "x2 (1, 0) + 0");
}

TEST_F(StridedViewTest, reshape_of_dense_values) {
  Value* x = input({2, s0, 4});
  EXPECT_EQ(view(graph_.reshape(x, {s0 * 8})), "x0 (1) + 0");
  EXPECT_EQ(view(graph_.reshape(x, {s0 * 2, 4})), "x0 (4, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(x, {2, s0, 2, 2})), "x0 (s0*4, 4, 2, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(x, {2, 1, s0, 4, 1})), "x0 (s0*4, s0*4, 4, 1, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(input({}), {1, 1})), "x1 (1, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(input({1, 1}), {})), "x2 () + 0");
  EXPECT_EQ(view(graph_.reshape(input({0, 3}, {9, 1}), {3, 0})), "x3 (1, 1) + 0");
}

// Where torch's view would refuse, a copy is needed: the value is its own base.
TEST_F(StridedViewTest, reshape_of_permuted_values) {
  Value* x = input({6, 4});
  Value* t = graph_.permute(x, {1, 0});
  EXPECT_EQ(view(graph_.reshape(t, {24})), "itself (1) + 0");
  EXPECT_EQ(view(graph_.reshape(t, {2, 2, 6})), "x0 (2, 1, 4) + 0");
  EXPECT_EQ(view(graph_.reshape(t, {4, 3, 2})), "x0 (1, 8, 4) + 0");
  EXPECT_EQ(view(graph_.reshape(t, {8, 3})), "itself (3, 1) + 0");
  // What stands above the copy is a view of the copy.
  EXPECT_EQ(view(graph_.permute(graph_.reshape(t, {8, 3}), {1, 0})), "node (1, 3) + 0");
}

TEST_F(StridedViewTest, attention_heads) {
  // [B, S, H * D] -> [B, H, S, D] and back.
  Value* x = input({2, s0, 24});
  Value* heads = graph_.permute(graph_.reshape(x, {2, s0, 3, 8}), {0, 2, 1, 3});
  EXPECT_EQ(view(heads), "x0 (s0*24, 8, 24, 1) + 0");
  Value* back = graph_.permute(heads, {0, 2, 1, 3});
  EXPECT_EQ(view(graph_.reshape(back, {2, s0, 24})), "x0 (s0*24, 24, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(heads, {6, s0, 8})), "itself (s0*8, 8, 1) + 0");
  EXPECT_EQ(view(graph_.reshape(input({2, 3, s0, 8}), {6, s0, 8})), "x1 (s0*8, 8, 1) + 0");
}

TEST_F(StridedViewTest, reshape_of_sliced_values) {
  Value* x = input({4, 12});
  Value* columns = graph_.slice(x, 1, 4, 6, 1);
  EXPECT_EQ(view(graph_.reshape(columns, {4, 2, 3})), "x0 (12, 3, 1) + 4");
  EXPECT_EQ(view(graph_.reshape(columns, {2, 2, 6})), "x0 (24, 12, 1) + 4");
  EXPECT_EQ(view(graph_.reshape(columns, {24})), "itself (1) + 0");
  Value* rows = graph_.slice(x, 0, 1, 2, 1);
  EXPECT_EQ(view(graph_.reshape(rows, {24})), "x0 (1) + 12");
  Value* every_other = graph_.slice(x, 1, 0, 6, 2);
  EXPECT_EQ(view(graph_.reshape(every_other, {4, 2, 3})), "x0 (12, 6, 2) + 0");
  EXPECT_EQ(view(graph_.reshape(every_other, {24})), "x0 (2) + 0");
}

TEST_F(StridedViewTest, reshape_of_expanded_values) {
  Value* x = graph_.expand(input({4, 1}), {4, 6});
  EXPECT_EQ(view(graph_.reshape(x, {4, 2, 3})), "x0 (1, 0, 0) + 0");
  EXPECT_EQ(view(graph_.reshape(x, {24})), "itself (1) + 0");
  EXPECT_EQ(view(graph_.reshape(graph_.expand(input({1}), {6}), {2, 3})), "x1 (0, 0) + 0");
}

TEST_F(StridedViewTest, flip_and_cat_stop) {
  Value* x = input({4, 6});
  Value* flipped = graph_.flip(graph_.permute(x, {1, 0}), {0});
  EXPECT_EQ(view(flipped), "itself (4, 1) + 0");
  Value* joined = graph_.cat({x, x}, 0);
  EXPECT_EQ(view(graph_.slice(joined, 0, 4, 4, 1)), "node (6, 1) + 24");
}

}  // namespace
}  // namespace mlcc::graph
