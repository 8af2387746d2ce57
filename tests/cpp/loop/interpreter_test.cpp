#include "loop/interpreter.h"

#include <numeric>
#include <regex>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

using testing::ElementsAre;
using testing::EndsWith;
using testing::HasSubstr;

class InterpreterTest : public testing::Test {
 protected:
  int64_t run(std::string_view text, const std::vector<int64_t>& sizes,
              const std::vector<void*>& buffers, const InterpreterOptions& options = {}) {
    const Kernel kernel = parse_kernel(arena_, text);
    verify(kernel);
    return interpret(kernel, sizes, buffers, options);
  }

  std::string error(std::string_view text, const std::vector<int64_t>& sizes,
                    const std::vector<void*>& buffers) {
    try {
      run(text, sizes, buffers);
    } catch (const Error& e) {
      return e.what();
    }
    return "no error";
  }

  Arena arena_;
};

TEST_F(InterpreterTest, PointwiseWithSymbolicSizeAndStrides) {
  std::vector<float> x = {1, -2, 3, -4, 5, -6};
  std::vector<float> y(6, -1);
  const char* text = R"(kernel @t(%n: i64; %x: in f32[%n, 2], %y: out f32[%n, 2] strides[1, %n]) {
    for %i in 0..%n parallel { for %j in 0..2 vector { store %y[%i, %j] = max(%x[%i, %j], 0) } }
  })";
  EXPECT_EQ(run(text, {3}, {x.data(), y.data()}), 0);
  EXPECT_THAT(y, ElementsAre(1, 3, 5, 0, 0, 0));
}

TEST_F(InterpreterTest, MaskedAccessesTouchNothing) {
  std::vector<float> x = {1, 2};
  std::vector<float> y = {7, 7, 7, 7};
  const char* text = R"(kernel @m(%x: in f32[2], %y: inout f32[4]) {
    for %i in 0..5 { store %y[%i] = load(%x[%i], %i < 2, 9) + load(%x[%i], %i < 2) if %i < 3 }
  })";
  EXPECT_EQ(run(text, {}, {x.data(), y.data()}), 0);
  EXPECT_THAT(y, ElementsAre(2, 4, 9, 7));
}

TEST_F(InterpreterTest, ReportsAccessesOutOfBounds) {
  std::vector<float> y(4);
  EXPECT_EQ(
      error("kernel @o(%y: out f32[4]) { for %i in 0..5 { store %y[%i] = 1 } }", {}, {y.data()}),
      "kernel @o: 'store %y[%i] = 1.0': %y: index 4 in dimension 0 is outside 0..4");
  EXPECT_THAT(error("kernel @o(%y: in f32[4]) { let %a: f32 = %y[-1] }", {}, {y.data()}),
              EndsWith("%y: index -1 in dimension 0 is outside 0..4"));
}

TEST_F(InterpreterTest, ReportsReadsBeforeWrites) {
  std::vector<float> y(4);
  EXPECT_THAT(
      error("kernel @u() { alloc %t: stack f32[2, 3] store %t[1, 1] = 0 let %a: f32 = %t[1, 2] }",
            {}, {}),
      EndsWith("%t: element 5 is read before it is written"));
  EXPECT_THAT(error("kernel @u(%y: scratch f32[4]) { let %a: f32 = %y[0] }", {}, {y.data()}),
              EndsWith("%y: element 0 is read before it is written"));
  EXPECT_THAT(error("kernel @u(%y: out f32[4]) { atomic add %y[0] = 1 }", {}, {y.data()}),
              EndsWith("%y: element 0 is read before it is written"));
  // Each pass through the block makes the buffer anew.
  EXPECT_THAT(error("kernel @u() { for %i in 0..2 { alloc %t: stack i64[1] if %i == 0 { store "
                    "%t[0] = 1 } let %a: i64 = %t[0] } }",
                    {}, {}),
              EndsWith("%t: element 0 is read before it is written"));
}

TEST_F(InterpreterTest, ReportsUndefinedDivisions) {
  std::vector<int32_t> y = {-2147483647 - 1, -1};
  EXPECT_THAT(
      error("kernel @d(%y: inout i32[2]) { store %y[0] = floordiv(%y[0], %y[1]) }", {}, {y.data()}),
      EndsWith("floordiv of -2147483648 by -1"));
  EXPECT_THAT(error("kernel @d(%n: i64) { let %a: i64 = mod(1, %n) }", {0}, {}),
              EndsWith("mod of 1 by 0"));
}

TEST_F(InterpreterTest, FailedChecksStopTheKernel) {
  std::vector<int64_t> index = {0, 1, 9, 2};
  std::vector<int64_t> y(4, 0);
  const char* text = R"(kernel @c(%i: in i64[4], %y: inout i64[4])
      errors(3: IndexError "index out of range") {
    for %k in 0..4 {
      check %i[%k] >= 0 & %i[%k] < 4 else 3
      store %y[%k] = %i[%k] + 1
    }
    barrier
    store %y[3] = 77
  })";
  EXPECT_EQ(run(text, {}, {index.data(), y.data()}), 3);
  EXPECT_THAT(y, ElementsAre(1, 2, 0, 0));
  index[2] = 3;
  EXPECT_EQ(run(text, {}, {index.data(), y.data()}), 0);
  EXPECT_THAT(y, ElementsAre(1, 2, 4, 77));
}

TEST_F(InterpreterTest, AFailedCheckTellsItsDetails) {
  std::vector<int64_t> x = {3, 8, 9};
  const Kernel kernel = parse_kernel(arena_, R"(kernel @c(%n: i64; %x: in i64[%n])
      errors(3: IndexError "{0} of {1}") {
    for %k in 0..%n { check %x[%k] < 5 else 3 (%x[%k] - 10, %k) }
  })");
  const std::vector<int64_t> sizes = {3};
  const std::vector<void*> buffers = {x.data()};
  CheckDetails details;
  EXPECT_EQ(interpret(kernel, sizes, buffers, {}, &details), 3);
  EXPECT_THAT(details, ElementsAre(-2, 1));
}

constexpr std::string_view kSum = R"(kernel @s(%n: i64; %x: in i64[%n], %y: out i64[2]) {
  reduce %i in 0..%n vector (%s: i64 = 0, %m: i64 = -1000) {
    yield %s + %x[%i], max(%m, %x[%i])
  } combine (%a, %b, %c, %d) {
    yield %a + %c, max(%b, %d)
  } -> %sum, %max
  store %y[0] = %sum
  store %y[1] = %max
})";

TEST_F(InterpreterTest, PartialReductionsAgreeWithThePlainOrder) {
  std::vector<int64_t> x(37);
  std::iota(x.begin(), x.end(), -5);
  for (const int64_t n : {0, 1, 5, 37}) {
    std::vector<int64_t> expected(2);
    run(kSum, {n}, {x.data(), expected.data()});
    EXPECT_EQ(expected[0], n * (n - 1) / 2 - 5 * n);
    for (const int64_t partials : {2, 3, 16, 64}) {
      for (const uint64_t seed : {0, 1, 2, 3}) {
        std::vector<int64_t> y(2);
        run(kSum, {n}, {x.data(), y.data()}, {.partials = partials, .seed = seed});
        EXPECT_EQ(y, expected) << n << " " << partials << " " << seed;
      }
    }
  }
}

TEST_F(InterpreterTest, SeedsShowWrongClaimsOfIndependence) {
  const char* text = R"(kernel @w(%y: inout i64[64]) {
    for %i in 1..64 vector { store %y[%i] = %y[%i - 1] + 1 }
  })";
  std::vector<int64_t> plain(64, 0);
  run(text, {}, {plain.data()});
  EXPECT_EQ(plain[63], 63);
  std::vector<int64_t> permuted(64, 0);
  run(text, {}, {permuted.data()}, {.seed = 1});
  EXPECT_NE(permuted, plain);
}

TEST_F(InterpreterTest, LoadsReadTheMemoryAsTheirStatementBegins) {
  std::vector<int64_t> y = {1, 2};
  const char* text = R"(kernel @b(%y: inout i64[2]) {
    let %old: i64 = %y[0]
    store %y[0] = %y[1] + %y[0]
    store %y[1] = %old + %y[0]
  })";
  run(text, {}, {y.data()});
  EXPECT_THAT(y, ElementsAre(3, 4));
}

TEST_F(InterpreterTest, ContractAccumulatesATileWithFma) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6};  // 2 x 3, stored by columns
  std::vector<float> b = {1, 0, 2, 1, 1, 1};  // 3 x 2
  std::vector<float> y(4);
  const char* text =
      R"(kernel @c(%k: i64; %a: in f32[%k, 2], %b: in f32[%k, 2], %y: out f32[2, 2]) {
    alloc %t: register f32[2, 2]
    for %i in 0..2 unrolled { for %j in 0..2 unrolled { store %t[%i, %j] = 10 } }
    contract %t[0, 0] by (2, 1) += %a[0, 0] by (1, 2) * %b[0, 0] by (1, 2) tile(2, 2) depth(%k)
    for %m in 0..2 { for %n in 0..2 vector { store %y[%m, %n] = %t[%m, %n] } }
  })";
  run(text, {3}, {a.data(), b.data(), y.data()});
  EXPECT_THAT(y, ElementsAre(10 + 1 + 6 + 5, 10 + 3 + 5, 10 + 2 + 8 + 6, 10 + 4 + 6));
  run(text, {0}, {a.data(), b.data(), y.data()});
  EXPECT_THAT(y, ElementsAre(10, 10, 10, 10));
}

TEST_F(InterpreterTest, ContractOfBytesAccumulatesInI32) {
  std::vector<uint8_t> a = {255, 200};
  std::vector<int8_t> b = {-128, 127};
  int32_t y = 0;
  const char* text = R"(kernel @c(%a: in u8[1, 2], %b: in i8[2, 1], %y: out i32[]) {
    alloc %t: register i32[1, 1]
    store %t[0, 0] = 5
    contract %t[0, 0] by (1, 1) += %a[0, 0] by (2, 1) * %b[0, 0] by (1, 1) tile(1, 1) depth(2)
    store %y[] = %t[0, 0]
  })";
  run(text, {}, {a.data(), b.data(), &y});
  EXPECT_EQ(y, 5 - 255 * 128 + 200 * 127);
}

// Overlapping windows of a line: steps that are no dimensions, and two depth axes.
TEST_F(InterpreterTest, ContractStepsThroughMemory) {
  std::vector<float> a = {1, 2, 3, 4, 5, 6, 7};
  std::vector<float> b = {1, 10, 100, 1000};
  std::vector<float> y(2);
  const std::string text = R"(kernel @c(%a: in f32[7], %b: in f32[4], %y: out f32[2]) {
    alloc %t: stack f32[4]
    contract %t[0] by (2, 1) = %a[0] by (2, 3, 1) * %b[0] by (0, 2, 1) tile(2, 2) live(1) depth(2, 2)
    for %m in 0..2 { store %y[%m] = %t[%m * 2] }
  })";
  run(text, {}, {a.data(), b.data(), y.data()});
  EXPECT_THAT(y, ElementsAre(5421, 7643));
  const std::string in_turn =
      std::regex_replace(text, std::regex("\\(2, 3, 1\\)"), "(9, 3, 1) rows(2, 0)");
  run(in_turn, {}, {a.data(), b.data(), y.data()});
  EXPECT_THAT(y, ElementsAre(7643, 5421));
  run(in_turn.substr(0, in_turn.find(" depth")) + " depth(2, 2) ahead(3, 1)" +
          in_turn.substr(in_turn.find("\n", in_turn.find(" depth"))),
      {}, {a.data(), b.data(), y.data()});
  EXPECT_THAT(y, ElementsAre(7643, 5421));
}

TEST_F(InterpreterTest, ContractStaysInItsBuffers) {
  std::vector<float> a(4), b(4), y(1);
  const auto outcome = [&](const std::string& contract, const char* rest = "") {
    const std::string text =
        "kernel @c(%k: i64; %a: in f32[2, 2] strides[3, 1], %b: in f32[4], %y: out f32[1]) {\n"
        "alloc %t: stack f32[2]\ncontract %t[0] by (1, 1) = " +
        contract + rest + "\n}";
    try {
      run(text.c_str(), {2}, {a.data(), b.data(), y.data()});
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  a.resize(5);
  EXPECT_EQ(outcome("%a[0, 0] by (1, 3) * %b[0] by (1, 2) tile(1, 2) depth(%k)"), "no error");
  EXPECT_THAT(outcome("%a[0, 0] by (1, 2) * %b[0] by (1, 2) tile(1, 2) depth(%k)"),
              EndsWith("%a: no element is at place 2"));
  EXPECT_THAT(outcome("%a[0, 0] by (1, 3) * %b[1] by (1, 2) tile(1, 2) depth(%k)"),
              EndsWith("%b: no element is at place 4"));
  EXPECT_THAT(outcome("%a[0, 0] by (1, 3) * %b[0] by (1, 2) tile(1, 2) live(%k + 1) depth(%k)"),
              EndsWith("live columns: found 3, expected 1 to 2"));
  EXPECT_THAT(outcome("%a[0, 0] by (1, 3) * %b[0] by (1, 2) tile(1, 2) live(1) depth(%k)",
                      "\nstore %y[0] = %t[1]"),
              EndsWith("%t: element 1 is read before it is written"));
}

TEST_F(InterpreterTest, SharedSubexpressionsCostOnce) {
  // 2^60 as a tree; the text says it with sharing only through lets, the builder can share freely.
  Expr e = Variable::make(arena_, DType::kI64, "n");
  const auto* n = as<Variable>(e);
  for (int i = 0; i < 60; ++i) e = Apply::make(arena_, ScalarOp::kAdd, {e, e});
  const Buffer* y = arena_.make_buffer({"y", DType::kI64, Scope::kGlobal, Access::kOut, {}, {}});
  const Kernel kernel{"k", {n}, {y}, {{Store::make(arena_, y, {}, e)}}, {}};
  int64_t result = 0;
  void* buffers[] = {&result};
  const int64_t sizes[] = {3};
  EXPECT_EQ(interpret(kernel, sizes, buffers), 0);
  EXPECT_EQ(result, int64_t{3} << 60);
}

TEST_F(InterpreterTest, WrongArgumentCountsAreBugs) {
  EXPECT_THROW(run(kSum, {}, {}), InternalError);
  std::vector<float> y(1);
  EXPECT_THAT(error("kernel @n(%n: i64; %y: out f32[%n]) { }", {-1}, {y.data()}),
              HasSubstr("extent -1"));
}

}  // namespace
}  // namespace mlcc::loop
