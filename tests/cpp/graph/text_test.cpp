#include "graph/contraction.h"
#include "graph/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "support/error.h"

namespace mlcc::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const SymExpr s0 = SymExpr::symbol("s0");

// The first dtype that the op may be computed in, f32 where it may.
DType dtype_for(const OpInfo& info) {
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kBool})
    if (holds(info.domain, dtype)) return dtype;
  return DType::kF32;
}

Value* build_pointwise(Graph& graph, const OpInfo& info, int& next) {
  std::vector<Value*> operands;
  for (int i = 0; i < info.arity; ++i) {
    const bool is_condition = info.rule == DTypeRule::kSelect && i == 0;
    const DType dtype = is_condition ? DType::kBool : dtype_for(info);
    operands.push_back(graph.add_input("x" + std::to_string(next++), {dtype, {s0, 3}, {}}));
  }
  return graph.pointwise(info.op, operands);
}

// One node of every op of the table.
std::unique_ptr<Graph> all_ops_graph() {
  auto graph = std::make_unique<Graph>("all_ops");
  graph->add_symbol({"s0", {2, 64}, 8});
  graph->add_symbol({"u0", {0, kUnboundedHigh}, {}});
  std::vector<Value*> outputs;
  int next = 0;
  Value* x = graph->add_input("x", {DType::kF32, {s0, 4}, {1, s0}});
  Value* b = graph->add_input("b", {DType::kBool, {s0, 4}, {}});
  Value* i = graph->add_input("i", {DType::kI64, {3, 4}, {}});
  for (const OpInfo& info : all_ops()) {
    if (info.arity >= 0) outputs.push_back(build_pointwise(*graph, info, next));
    if (info.op_class != OpClass::kReduction) continue;
    const bool is_of_bool = info.op == Op::kAny || info.op == Op::kAll;
    outputs.push_back(graph->reduce(info.op, is_of_bool ? b : x, {1}, next++ % 2 == 0));
  }
  outputs.push_back(graph->cast(x, DType::kBF16));
  outputs.push_back(graph->permute(x, {1, 0}));
  graph->set_strides(outputs.back(), {s0, 1});
  outputs.push_back(graph->expand(x, {5, s0, 4}));
  outputs.push_back(graph->reshape(x, {2, s0 * 2}));
  outputs.push_back(graph->slice(x, 1, 1, 2, 2));
  outputs.push_back(graph->flip(x, {0}));
  outputs.push_back(graph->cat({x, x, outputs.back()}, 1));
  outputs.push_back(graph->window(x, 1, 2, 2, 2, 1));
  outputs.push_back(graph->spread(x, 1, 3, 2));
  outputs.push_back(graph->extend(x, 1, 2, 7, "circular"));
  outputs.push_back(graph->pad(x, 0, 1, s0 + 1, 0.5));
  outputs.push_back(graph->full({s0, 2}, DType::kF32, 0.1));
  outputs.push_back(graph->full_int({}, DType::kI64, INT64_MAX));
  outputs.push_back(graph->iota(s0, DType::kI32, 1, s0));
  outputs.push_back(graph->size_value(s0 * s0));
  outputs.push_back(graph->size_result(s0 - 1));
  outputs.push_back(graph->take(x, {i}, 0, true, "embedding"));
  outputs.push_back(graph->gather(x, i, 0, "gather"));
  outputs.push_back(graph->scatter(x, i, outputs.back(), 0, "add", false, "scatter"));
  Value* rows = outputs[outputs.size() - 3];
  outputs.push_back(graph->index_put(x, {i}, rows, 0, "max", true, true, "index"));
  outputs.push_back(graph->pointwise(Op::kPhilox, {i, i}));
  outputs.push_back(graph->scan(x, 1, "argmax"));
  const auto axis = [](size_t number) { return SymExpr::symbol(axis_name(number)); };
  outputs.push_back(
      graph->contract(x, x, {axis(0), axis(2)}, {axis(1), axis(2)}, {4}, {s0, s0}, DType::kF32));
  Value* bytes = graph->cast(x, DType::kI8);
  outputs.push_back(graph->contract_groups({.lhs = bytes,
                                            .rhs = bytes,
                                            .lhs_scales = x,
                                            .rhs_scales = x,
                                            .starts = graph->cast(x, DType::kI32),
                                            .lhs_index = {axis(0), axis(2) * 2 + axis(3)},
                                            .rhs_index = {axis(1), axis(2) * 2 + axis(3)},
                                            .lhs_scales_index = {axis(0), axis(2) + 1},
                                            .rhs_scales_index = {axis(1), 0},
                                            .starts_index = {axis(0), axis(2) + 1},
                                            .bits = 8},
                                           2, 2, {s0, s0}));
  Value* scores = outputs.back();
  outputs.push_back(graph->attend(scores, x, nullptr, {axis(0), axis(2)}, {axis(2), axis(1)}, s0,
                                  {0, axis(0) + 1}, true, {s0, 4}, DType::kF32));
  outputs.push_back(graph->score_norm(Op::kLogSumExp, scores, {axis(0), axis(1)}, s0,
                                      {0, axis(0) + 1}, false, {s0}));
  for (const Op op : {Op::kLargestScore, Op::kScoreSum})
    outputs.push_back(graph->score_norm(op, scores, {axis(0), axis(1)}, s0, {0, s0}, false, {s0}));
  outputs.push_back(graph->attend_gradients(scores, scores, x, x, x, {0, axis(0) + 1}));
  ExternCall call{"my.op.default", {ArgRef{0}, s0 * 3, -1e-7, true, "t"}, {}, {}};
  call.kwargs.emplace_back("layout", ArgEnum{"layout", "strided"});
  call.facts = {.random = true,
                .effects = true,
                .mutates = {0},
                .aliases = true,
                .begins = true,
                .waits = true};
  for (Value* result : graph->extern_call(call, {x}, {x->type(), b->type()}))
    outputs.push_back(result);
  outputs.push_back(
      graph->extern_size({"aten.item.default", {ArgRef{0}}, {}, {}}, {i}, SymExpr::symbol("u0")));
  graph->set_outputs(outputs);
  return graph;
}

TEST(Text, every_op_is_read_back) {
  const auto graph = all_ops_graph();
  verify(*graph);
  const std::string text = print(*graph);
  for (const OpInfo& info : all_ops())
    EXPECT_NE(text.find("= " + std::string(info.text)), std::string::npos) << info.text;
  const auto again = parse_graph(text);
  verify(*again);
  EXPECT_EQ(print(*again), text);
}

TEST(Text, does_not_depend_on_addresses_or_history) {
  const std::string text = print(*all_ops_graph());
  std::vector<std::unique_ptr<int>> noise;  // moves the heap
  for (int i = 0; i < 1000; ++i) noise.push_back(std::make_unique<int>(i));
  const auto graph = all_ops_graph();
  EXPECT_EQ(print(*graph), text);
  // Ids that are gone leave no gap in the text.
  graph->erase(graph->pointwise(Op::kNeg, {graph->inputs()[0].get()})->producer());
  EXPECT_EQ(print(*graph), text);
  EXPECT_EQ(print(*graph->clone()), text);
}

TEST(Text, a_node_prints_on_one_line_with_ids) {
  Graph graph;
  Value* x = graph.add_input("x", {DType::kF32, {4}, {}});
  Value* y = graph.pointwise(Op::kAdd, {x, x});
  EXPECT_EQ(print(*y->producer()), "%1: f32[4] = add %x, %x");
  EXPECT_EQ(print(TensorType{DType::kI8, {s0, 2}, {1, s0}}), "i8[s0, 2] strides(1, s0)");
  EXPECT_EQ(print(TensorType{DType::kI8, {}, {}}), "i8[]");
  EXPECT_EQ(print(TensorType{DType::kI8, {2}, {3}, {DeviceKind::kCuda, 1}}),
            "i8[2] strides(3) @cuda:1");
}

TEST(Text, source_of_a_parsed_node_is_its_place) {
  const auto graph = parse_graph("graph @g(%x: f32[4]) {\n  %0: f32[4] = exp %x\n  return %0\n}");
  EXPECT_EQ(graph->nodes()[0]->source(), "2:3");
}

TEST(Text, errors_have_places) {
  EXPECT_THAT([] { parse_graph("graph @g(%x: f32[4]) {\n  %0: f32[4] = exp\n  return\n}"); },
              ThrowsMessage<Error>(HasSubstr("2:3: exp %0: found 0 operands, expected 1")));
  EXPECT_THAT([] { parse_graph("graph g"); }, ThrowsMessage<Error>(HasSubstr("1:7: ")));
  EXPECT_THAT([] { parse_graph(""); }, ThrowsMessage<Error>(HasSubstr("1:1: expected 'graph'")));
}

// Neither a crash nor an endless loop on broken text: whatever is cut out or doubled, the answer is
// a graph or an Error.
TEST(Text, broken_text_is_refused_or_read) {
  const std::string text = print(*all_ops_graph());
  std::mt19937 random(7);
  int refused = 0;
  for (int round = 0; round < 300; ++round) {
    std::string broken = text;
    const size_t place = random() % broken.size();
    const size_t length = 1 + random() % 12;
    if (round % 2 == 0)
      broken.erase(place, length);
    else
      broken.insert(place, broken.substr(random() % broken.size(), length));
    try {
      verify(*parse_graph(broken));
    } catch (const Error&) {
      ++refused;
    } catch (const InternalError& error) {
      EXPECT_THAT(error.what(), ::testing::Not(HasSubstr("unreachable")));
      ++refused;
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(Verifier, finds_uses_before_definitions) {
  Graph graph("g");
  Value* x = graph.add_input("x", {DType::kF32, {4}, {}});
  Value* first = graph.pointwise(Op::kExp, {x});
  Value* second = graph.pointwise(Op::kNeg, {x});
  graph.set_outputs({first, second});
  verify(graph);
  graph.replace_operand(first->producer(), 0, second);
  EXPECT_THAT([&] { verify(graph); }, ThrowsMessage<InternalError>(HasSubstr(
                                          "`%1: f32[4] = exp %2`: operand 0 is not defined")));
}

TEST(Verifier, finds_outputs_of_other_graphs) {
  Graph graph("g"), other("h");
  graph.set_outputs({other.add_input("x", {DType::kF32, {4}, {}})});
  EXPECT_THAT([&] { verify(graph); },
              ThrowsMessage<InternalError>(HasSubstr("an output is no value of the graph")));
}

TEST(Verifier, finds_undeclared_symbols) {
  Graph graph("g");
  graph.add_input("x", {DType::kF32, {s0}, {}});
  EXPECT_THAT([&] { verify(graph); },
              ThrowsMessage<InternalError>(HasSubstr("input %x: symbol s0 is not declared")));
}

}  // namespace
}  // namespace mlcc::graph
