#include "graph/inference.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const SymExpr s0 = SymExpr::symbol("s0");
const SymExpr s1 = SymExpr::symbol("s1");

class InferenceTest : public ::testing::Test {
 protected:
  InferenceTest() {
    graph_.add_symbol({"s0", {2, kUnboundedHigh}, {}});
    graph_.add_symbol({"s1", {2, kUnboundedHigh}, {}});
  }

  Value* input(DType dtype, std::vector<SymExpr> shape) {
    return graph_.add_input("x" + std::to_string(next_++), {dtype, std::move(shape), {}});
  }
  Value* f32(std::vector<SymExpr> shape) { return input(DType::kF32, std::move(shape)); }
  static std::string type(const Value* value) { return print(value->type()); }

  Graph graph_;
  int next_ = 0;
};

#define EXPECT_REFUSED(expression, text)                                                           \
  EXPECT_THAT([&] { expression; }, ThrowsMessage<Error>(HasSubstr(text)))

TEST_F(InferenceTest, pointwise_broadcasts) {
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {f32({s0, 1, 4}), f32({s1, 1})})), "f32[s0, s1, 4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {f32({}), f32({0, 3})})), "f32[0, 3]");
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {f32({s0 * 2 + 1}), f32({s0 + s0 + 1})})),
            "f32[s0*2 + 1]");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {f32({s0}), f32({s1})}), "shapes do not broadcast");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {f32({s0}), f32({2})}), "shapes do not broadcast");
}

TEST_F(InferenceTest, results_lie_on_the_device_of_their_operands) {
  const Device gpu{DeviceKind::kCuda, 0};
  const auto on = [&](Device device, std::vector<SymExpr> shape) {
    return graph_.add_input("x" + std::to_string(next_++),
                            {DType::kF32, std::move(shape), {}, device});
  };
  Value* x = on(gpu, {s0, 4});
  Value* number = on({}, {});
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {x, on(gpu, {4})})), "f32[s0, 4] @cuda:0");
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {number, x})), "f32[s0, 4] @cuda:0");
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {number, on(gpu, {})})), "f32[] @cuda:0");
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {number, number})), "f32[]");
  EXPECT_EQ(type(graph_.reduce(Op::kSum, graph_.permute(x, {1, 0}), {0}, false)),
            "f32[s0] @cuda:0");
  EXPECT_EQ(type(graph_.cast(x, DType::kBF16)), "bf16[s0, 4] @cuda:0");
  EXPECT_EQ(type(graph_.full({s0}, DType::kF32, 1, gpu)), "f32[s0] @cuda:0");
  EXPECT_EQ(type(graph_.full_int({}, DType::kI64, 1, gpu)), "i64[] @cuda:0");
  EXPECT_EQ(type(graph_.iota(s0, DType::kI64, 0, 1, gpu)), "i64[s0] @cuda:0");
  EXPECT_EQ(type(graph_.size_value(s0, gpu)), "i64[] @cuda:0");
  const std::string text =
      "expected all tensors to be on the same device, but found at least two devices, cuda:0 and ";
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {f32({s0, 4}), x}), text + "cpu!");
  EXPECT_REFUSED(graph_.cat({x, f32({2, 4})}, 0), text + "cpu!");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {x, on({DeviceKind::kCuda, 1}, {})}), text + "cuda:1!");
}

TEST_F(InferenceTest, pointwise_dtypes) {
  Value* b = input(DType::kBool, {4});
  Value* i = input(DType::kI32, {4});
  Value* f = f32({4});
  Value* h = input(DType::kBF16, {4});
  EXPECT_EQ(type(graph_.pointwise(Op::kAdd, {i, i})), "i32[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kExp, {h})), "bf16[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kLt, {i, i})), "bool[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kEq, {b, b})), "bool[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kLogicalAnd, {b, b})), "bool[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kIsNan, {f})), "bool[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kWhere, {b, i, i})), "i32[4]");
  EXPECT_EQ(type(graph_.pointwise(Op::kCopy, {b})), "bool[4]");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {i, f}), "operand 1 is f32, operand 0 is i32");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {b, b}), "operands are bool, expected number");
  EXPECT_REFUSED(graph_.pointwise(Op::kDiv, {i, i}), "operands are i32, expected float");
  EXPECT_REFUSED(graph_.pointwise(Op::kLogicalAnd, {i, i}), "expected bool");
  EXPECT_REFUSED(graph_.pointwise(Op::kAnd, {f, f}), "expected integral");
  EXPECT_REFUSED(graph_.pointwise(Op::kWhere, {f, f, f}), "operand 0 is f32, expected bool");
  EXPECT_REFUSED(graph_.pointwise(Op::kWhere, {b, f, i}), "operand 2 is i32, operand 1 is f32");
  EXPECT_REFUSED(graph_.pointwise(Op::kAdd, {f}), "found 1 operands, expected 2");
}

TEST_F(InferenceTest, messages_name_the_node_by_op_and_number) {
  Value* x = f32({4});
  EXPECT_REFUSED(graph_.pointwise(Op::kMul, {x, f32({3})}), "mul %2: ");
}

TEST_F(InferenceTest, cast) {
  Value* x = f32({s0});
  EXPECT_EQ(graph_.cast(x, DType::kF32), x);
  EXPECT_EQ(type(graph_.cast(x, DType::kBool)), "bool[s0]");
}

TEST_F(InferenceTest, permute_and_flip) {
  Value* x = f32({s0, s1, 4});
  EXPECT_EQ(type(graph_.permute(x, {2, 0, 1})), "f32[4, s0, s1]");
  EXPECT_EQ(type(graph_.flip(x, {2, 0})), "f32[s0, s1, 4]");
  EXPECT_EQ(type(graph_.permute(f32({}), {})), "f32[]");
  EXPECT_REFUSED(graph_.permute(x, {0, 1}), "found 2 dims, expected 3");
  EXPECT_REFUSED(graph_.permute(x, {0, 1, 1}), "dim 1 stands twice");
  EXPECT_REFUSED(graph_.permute(x, {0, 1, -1}), "dim -1 is out of range");
  EXPECT_REFUSED(graph_.flip(x, {3}), "dim 3 is out of range for 3 dimensions");
}

TEST_F(InferenceTest, expand) {
  Value* x = f32({1, s0});
  EXPECT_EQ(type(graph_.expand(x, {3, s1, s0})), "f32[3, s1, s0]");
  EXPECT_REFUSED(graph_.expand(x, {s0}), "has more dimensions");
  EXPECT_REFUSED(graph_.expand(x, {3, s1}), "does not expand to");
}

TEST_F(InferenceTest, reshape) {
  Value* x = f32({s0, s1 * 4});
  EXPECT_EQ(type(graph_.reshape(x, {s0 * s1, 2, 2})), "f32[s0*s1, 2, 2]");
  EXPECT_REFUSED(graph_.reshape(x, {s0, s1}), "elements");
  EXPECT_REFUSED(graph_.reshape(f32({6}), {7}), "operand [6] has 6 elements, [7] has 7");
  // Whether this is right depends on s0, which whoever built the graph had guards for.
  const SymExpr rows = SymExpr::floordiv(s0, 2);
  EXPECT_EQ(type(graph_.reshape(f32({s0 * 4}), {rows, 8})), "f32[floordiv(s0, 2), 8]");
}

TEST_F(InferenceTest, slice) {
  Value* x = f32({s0, 10});
  EXPECT_EQ(type(graph_.slice(x, 1, 1, 3, 4)), "f32[s0, 3]");
  EXPECT_EQ(type(graph_.slice(x, 1, 10, 0, 1)), "f32[s0, 0]");
  EXPECT_EQ(type(graph_.slice(x, 0, 1, s0 - 1, 1)), "f32[s0 - 1, 10]");
  EXPECT_EQ(type(graph_.slice(x, 0, s1, s1, 2)), "f32[s1, 10]");
  EXPECT_REFUSED(graph_.slice(x, 1, 2, 3, 4), "elements 2 to 10 are out of range for size 10");
  EXPECT_REFUSED(graph_.slice(x, 0, 1, s0, 1), "out of range for size s0");
  EXPECT_REFUSED(graph_.slice(x, 1, -1, 3, 1), "start is -1");
  EXPECT_REFUSED(graph_.slice(x, 1, 1, -1, 1), "length is -1");
  EXPECT_REFUSED(graph_.slice(x, 1, 1, 1, 0), "step is 0");
  EXPECT_REFUSED(graph_.slice(x, 2, 1, 1, 1), "dim 2 is out of range");
}

TEST_F(InferenceTest, cat) {
  Value* x = f32({s0, 4});
  EXPECT_EQ(type(graph_.cat({x, f32({s1, 4}), f32({3, 4})}, 0)), "f32[s0 + s1 + 3, 4]");
  EXPECT_REFUSED(graph_.cat({x, f32({s0, 5})}, 0), "operand 1 has [s0, 5], operand 0 has [s0, 4]");
  EXPECT_REFUSED(graph_.cat({x, f32({4})}, 0), "they may differ in dim 0 only");
  EXPECT_REFUSED(graph_.cat({x, input(DType::kF64, {s0, 4})}, 0), "operand 1 is f64");
  EXPECT_REFUSED(graph_.cat({}, 0), "found no operands");
}

TEST_F(InferenceTest, reductions) {
  Value* x = f32({s0, 3, s1});
  EXPECT_EQ(type(graph_.reduce(Op::kSum, x, {2, 0}, false)), "f32[3]");
  EXPECT_EQ(type(graph_.reduce(Op::kMax, x, {1}, true)), "f32[s0, 1, s1]");
  EXPECT_EQ(type(graph_.reduce(Op::kSum, x, {}, false)), "f32[s0, 3, s1]");
  EXPECT_EQ(type(graph_.reduce(Op::kArgMax, x, {2}, false)), "i64[s0, 3]");
  EXPECT_EQ(type(graph_.reduce(Op::kAny, input(DType::kBool, {s0}), {0}, false)), "bool[]");
  EXPECT_REFUSED(graph_.reduce(Op::kSum, x, {0, 0}, false), "dim 0 stands twice");
  EXPECT_REFUSED(graph_.reduce(Op::kSum, x, {3}, false), "dim 3 is out of range");
  EXPECT_REFUSED(graph_.reduce(Op::kAll, x, {0}, false), "operand is f32, expected bool");
  EXPECT_REFUSED(graph_.reduce(Op::kProd, input(DType::kBool, {s0}), {0}, false), "is bool");
  EXPECT_REFUSED(graph_.reduce(Op::kArgMin, x, {0, 1}, false), "found 2 dims, expected one");
  EXPECT_THROW(graph_.reduce(Op::kAdd, x, {0}, false), InternalError);
}

TEST_F(InferenceTest, creation) {
  EXPECT_EQ(type(graph_.full({s0}, DType::kF32, 0.5)), "f32[s0]");
  EXPECT_EQ(type(graph_.full({}, DType::kBool, 1)), "bool[]");
  EXPECT_EQ(type(graph_.full_int({2}, DType::kI64, INT64_MIN)), "i64[2]");
  EXPECT_EQ(graph_.full({}, DType::kI32, 3)->producer()->attr<int64_t>("value"), 3);
  EXPECT_EQ(graph_.full_int({}, DType::kF32, 3)->producer()->attr<double>("value"), 3.0);
  EXPECT_EQ(type(graph_.iota(s0, DType::kI64, 0, s1)), "i64[s0]");
  EXPECT_EQ(type(graph_.size_value(s0)), "i64[]");
  EXPECT_EQ(graph_.size_result(s0 * 2)->size(), s0 * 2);
  EXPECT_REFUSED(graph_.full({}, DType::kI32, 0.5), "value 0.5 is no i32");
  EXPECT_REFUSED(graph_.full({}, DType::kI64, std::numeric_limits<double>::quiet_NaN()), "no i64");
  EXPECT_REFUSED(graph_.full_int({}, DType::kU8, 256), "value 256 does not fit u8");
  EXPECT_REFUSED(graph_.full_int({}, DType::kI8, -129), "value -129 does not fit i8");
  EXPECT_REFUSED(graph_.full_int({}, DType::kBool, 2), "value 2 does not fit bool");
  EXPECT_REFUSED(graph_.iota(s0, DType::kF32, 0, 1), "expected an integer dtype");
}

TEST_F(InferenceTest, take_and_gather) {
  Value* x = f32({s0, 5, 4});
  Value* i = input(DType::kI64, {s1, 2});
  EXPECT_EQ(type(graph_.take(x, {i}, 1, true, "index")), "f32[s0, s1, 2, 4]");
  EXPECT_EQ(type(graph_.take(x, {input(DType::kI32, {})}, 0, false, "embedding")), "f32[5, 4]");
  EXPECT_EQ(type(graph_.gather(f32({s1, 3}), i, 1, "gather")), "f32[s1, 2]");
  EXPECT_REFUSED(graph_.take(x, {f32({2})}, 1, true, "index"), "index is f32");
  EXPECT_REFUSED(graph_.take(x, {i}, 3, true, "index"), "dim 3 is out of range");
  EXPECT_EQ(type(graph_.take(x, {i, i}, 0, true, "index")), "f32[s1, 2, 4]");
  EXPECT_REFUSED(graph_.take(x, {i, i}, 2, true, "index"),
                 "found 2 indices from dim 2 on, operand 0 has 3 dimensions");
  EXPECT_REFUSED(graph_.take(x, {i, input(DType::kI64, {2})}, 0, true, "index"),
                 "index 1 is [2], index 0 is [s1, 2]");
  EXPECT_REFUSED(graph_.take(x, {}, 0, true, "index"), "found 1 operands, expected at least 2");
  EXPECT_REFUSED(graph_.gather(x, i, 0, "gather"), "differ in the number of dimensions");
  EXPECT_REFUSED(graph_.gather(f32({7, 1}), i, 0, "gather"),
                 "is larger than operand [7, 1] in dimension 1");
}

TEST_F(InferenceTest, updates_and_scans) {
  Value* x = f32({s0, 5, 4});
  Value* i = input(DType::kI64, {s1, 2});
  Value* rows = f32({s0, s1, 2, 4});
  const auto put = [&](Value* source, const std::string& combine) {
    return graph_.index_put(x, {i}, source, 1, combine, false, true, "index");
  };
  EXPECT_EQ(type(put(rows, "add")), "f32[s0, 5, 4]");
  EXPECT_REFUSED(put(x, "add"), "operand 2 is [s0, 5, 4], expected [s0, s1, 2, 4]");
  EXPECT_EQ(type(graph_.index_put(x, {i, i}, f32({s1, 2, 4}), 0, "set", false, true, "index")),
            "f32[s0, 5, 4]");
  EXPECT_REFUSED(put(rows, "or"), "combine or is not for f32");
  EXPECT_REFUSED(put(rows, "plus"), "combine is unknown: plus");
  Value* base = f32({s1, 3});
  const auto scatter = [&](Value* source) {
    return graph_.scatter(base, i, source, 1, "set", true, "scatter");
  };
  EXPECT_EQ(type(scatter(f32({s1, 2}))), "f32[s1, 3]");
  EXPECT_REFUSED(scatter(f32({s1, 3})), "operand 2 is [s1, 3], index is [s1, 2]");
  EXPECT_EQ(type(graph_.scan(x, 2, "add")), "f32[s0, 5, 4]");
  EXPECT_EQ(type(graph_.scan(x, 0, "argmin")), "i64[s0, 5, 4]");
  EXPECT_EQ(type(graph_.scan(x, 0, "logaddexp")), "f32[s0, 5, 4]");
  EXPECT_REFUSED(graph_.scan(i, 0, "logaddexp"), "combine logaddexp is not for i64");
  EXPECT_EQ(type(graph_.pointwise(Op::kPhilox, {i, input(DType::kI64, {})})), "i32[s1, 2]");
  EXPECT_REFUSED(graph_.pointwise(Op::kPhilox, {i, x}), "operand 1 is f32, expected i64");
  EXPECT_REFUSED(graph_.scan(x, 3, "add"), "dim 3 is out of range");
  EXPECT_REFUSED(graph_.scan(x, 0, "set"), "combine set is not for f32");
}

TEST_F(InferenceTest, sizes_are_no_tensors) {
  Value* n = graph_.add_size_input("n", s0);
  EXPECT_REFUSED(graph_.pointwise(Op::kNeg, {n}), "operand 0 is a size, expected a tensor");
}

}  // namespace
}  // namespace mlcc::graph
