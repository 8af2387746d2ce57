#include "graph/graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

const SymExpr s0 = SymExpr::symbol("s0");

class GraphTest : public ::testing::Test {
 protected:
  GraphTest() : graph_("g") {
    graph_.add_symbol({"s0", {2, 100}, 8});
    x_ = graph_.add_input("x", {DType::kF32, {s0, 4}, {}});
    y_ = graph_.add_input("y", {DType::kF32, {4}, {}});
  }

  Graph graph_;
  Value* x_;
  Value* y_;
};

TEST_F(GraphTest, use_lists_hold_one_entry_per_use) {
  Value* sum = graph_.pointwise(Op::kAdd, {x_, y_});
  Value* square = graph_.pointwise(Op::kMul, {sum, sum});
  EXPECT_THAT(x_->users(), ElementsAre(sum->producer()));
  EXPECT_THAT(sum->users(), ElementsAre(square->producer(), square->producer()));
  EXPECT_THAT(square->users(), IsEmpty());
  EXPECT_EQ(sum->producer()->operand(1), y_);
  EXPECT_EQ(x_->producer(), nullptr);
}

TEST_F(GraphTest, replace_operand_moves_one_use) {
  Value* sum = graph_.pointwise(Op::kAdd, {x_, y_});
  Value* square = graph_.pointwise(Op::kMul, {sum, sum});
  graph_.replace_operand(square->producer(), 1, x_);
  EXPECT_THAT(sum->users(), ElementsAre(square->producer()));
  EXPECT_THAT(x_->users(), ElementsAre(sum->producer(), square->producer()));
  EXPECT_THAT([&] { graph_.replace_operand(square->producer(), 0, y_); },
              ThrowsMessage<InternalError>(HasSubstr("differ in type")));
  graph_.set_outputs({square});
  verify(graph_);
}

TEST_F(GraphTest, replace_all_uses_reaches_nodes_and_outputs) {
  Value* a = graph_.pointwise(Op::kExp, {x_});
  Value* b = graph_.pointwise(Op::kNeg, {x_});
  Value* c = graph_.pointwise(Op::kAdd, {a, a});
  graph_.set_outputs({a, c, a});
  graph_.replace_all_uses(a, b);
  EXPECT_THAT(graph_.outputs(), ElementsAre(b, c, b));
  EXPECT_THAT(a->users(), IsEmpty());
  EXPECT_EQ(b->users().size(), 2u);
  graph_.erase(a->producer());
  EXPECT_EQ(graph_.num_nodes(), 2u);
  EXPECT_THAT(x_->users(), ElementsAre(b->producer()));
  verify(graph_);
}

TEST_F(GraphTest, erase_refuses_what_is_used) {
  Value* a = graph_.pointwise(Op::kExp, {x_});
  Value* b = graph_.pointwise(Op::kNeg, {a});
  graph_.set_outputs({b});
  EXPECT_THAT([&] { graph_.erase(a->producer()); },
              ThrowsMessage<InternalError>(HasSubstr("still used")));
  EXPECT_THAT([&] { graph_.erase(b->producer()); },
              ThrowsMessage<InternalError>(HasSubstr("still used")));
}

TEST_F(GraphTest, nodes_go_to_the_insertion_point) {
  Value* a = graph_.pointwise(Op::kExp, {x_});
  Value* b = graph_.pointwise(Op::kNeg, {a});
  graph_.set_insertion_point(b->producer());
  Value* c = graph_.pointwise(Op::kAbs, {a});
  Value* d = graph_.pointwise(Op::kSqrt, {c});
  EXPECT_THAT(graph_.nodes(),
              ElementsAre(a->producer(), c->producer(), d->producer(), b->producer()));
  // Erasing the node at the insertion point moves the point on.
  graph_.erase(b->producer());
  Value* e = graph_.pointwise(Op::kNeg, {d});
  EXPECT_EQ(graph_.nodes().back(), e->producer());
  graph_.set_insertion_point(nullptr);
  EXPECT_EQ(graph_.nodes().back(), graph_.pointwise(Op::kNeg, {e})->producer());
}

TEST_F(GraphTest, clone_is_equal_and_apart) {
  Value* a = graph_.pointwise(Op::kExp, {x_});
  a->producer()->set_source("model.py:3");
  const auto called = graph_.extern_call({"aten.sort.default", {ArgRef{0}, true}, {}, {}}, {a},
                                         {a->type(), {DType::kI64, {s0, 4}, {1, s0}}});
  graph_.set_outputs({called[1], a});
  const auto copy = graph_.clone();
  verify(*copy);
  EXPECT_EQ(print(*copy), print(graph_));
  EXPECT_EQ(copy->nodes()[0]->source(), "model.py:3");
  EXPECT_EQ(copy->outputs()[0]->id(), called[1]->id());
  // Ids go on where they stopped; the original stays as it was.
  const std::string before = print(graph_);
  Value* more = copy->pointwise(Op::kNeg, {copy->outputs()[1]});
  EXPECT_GT(more->id(), called[1]->id());
  EXPECT_EQ(print(graph_), before);
}

TEST_F(GraphTest, dense_strides_are_said_by_none) {
  Value* z = graph_.add_input("z", {DType::kF32, {s0, 4}, {4, 1}});
  EXPECT_THAT(z->type().strides, IsEmpty());
  EXPECT_THAT(z->type().dense_or_strides(), ElementsAre(SymExpr(4), SymExpr(1)));
  graph_.set_strides(z, {1, s0});
  EXPECT_THAT(z->type().dense_or_strides(), ElementsAre(SymExpr(1), s0));
  graph_.set_strides(z, {4, 1});
  EXPECT_THAT(z->type().strides, IsEmpty());
  EXPECT_THROW(graph_.set_strides(z, {1}), Error);
}

TEST_F(GraphTest, a_symbol_declared_again_gets_narrower) {
  graph_.add_symbol({"s0", {0, 50}, 16});
  ASSERT_EQ(graph_.symbols().size(), 1u);
  EXPECT_EQ(graph_.symbols()[0].range.low, 2);
  EXPECT_EQ(graph_.symbols()[0].range.high, 50);
  EXPECT_EQ(graph_.symbols()[0].hint, 16);
  EXPECT_TRUE(graph_.assumptions().is_less(1, s0));
  EXPECT_THAT([&] { graph_.add_symbol({"s0", {60, 70}, {}}); },
              ThrowsMessage<Error>(HasSubstr("symbol s0: its range is empty")));
}

TEST_F(GraphTest, inputs_have_names_of_their_own) {
  EXPECT_THAT([&] { graph_.add_input("x", {}); }, ThrowsMessage<Error>(HasSubstr("input 'x'")));
  EXPECT_THROW(graph_.add_input("0", {}), Error);
  EXPECT_THROW(graph_.add_input("", {}), Error);
  Value* n = graph_.add_size_input("n", s0 * 2);
  EXPECT_EQ(n->kind(), ValueKind::kSize);
  EXPECT_EQ(n->size(), s0 * 2);
}

TEST_F(GraphTest, operands_of_a_call_are_in_the_order_of_their_references) {
  ExternCall call{"my.op.default",
                  {ArgRef{1}, ArgList{ArgRef{0}, ArgNone{}}, ArgRef{1}},
                  {{"out", ArgRef{0}}},
                  {}};
  call.facts.mutates = {0};
  Value* result = graph_.extern_call(call, {x_, y_}, {x_->type()})[0];
  const Node* node = result->producer();
  EXPECT_THAT(node->operands(), ElementsAre(y_, x_, y_, x_));
  EXPECT_THAT(node->extern_call().facts.mutates, ElementsAre(1, 3));
  graph_.set_outputs({result});
  verify(graph_);
  EXPECT_EQ(print(*node), "%2: f32[s0, 4] = extern \"my.op.default\"(%y, [%x, none], %y, out = %x)"
                          " mutates(1, 3)");

  EXPECT_THAT([&] { graph_.extern_call({"my.op.default", {ArgRef{2}}, {}, {}}, {x_}, {}); },
              ThrowsMessage<Error>(HasSubstr("names operand 2 of 1")));
  EXPECT_THAT([&] { graph_.extern_call({"my.op.default", {}, {}, {}}, {x_}, {}); },
              ThrowsMessage<Error>(HasSubstr("named by no argument")));
}

TEST_F(GraphTest, attributes_are_typed) {
  const Node* node = graph_.slice(x_, 1, s0 - 1, 2, 1)->producer();
  EXPECT_EQ(node->attr<int64_t>("dim"), 1);
  EXPECT_EQ(node->attr<SymExpr>("start"), s0 - 1);
  EXPECT_TRUE(node->has_attr("step"));
  EXPECT_FALSE(node->has_attr("length"));
  EXPECT_THAT([&] { node->attr<int64_t>("start"); },
              ThrowsMessage<InternalError>(HasSubstr("another type")));
  EXPECT_THAT([&] { node->attr<int64_t>("length"); },
              ThrowsMessage<InternalError>(HasSubstr("no attribute 'length'")));
  EXPECT_THROW(node->extern_call(), InternalError);
}

}  // namespace
}  // namespace mlcc::graph
