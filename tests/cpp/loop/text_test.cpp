#include "loop/text.h"

#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "loop/scalar_value.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string reprint(std::string_view text) {
  Arena arena;
  return print(parse_kernel(arena, text));
}

std::string parse_error(std::string_view text) {
  Arena arena;
  try {
    parse_kernel(arena, text);
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// A text that is printed as it stands.
constexpr std::string_view kEverything =
    R"(kernel @all(%s0: i64, %s1: i64; %x: in f32[%s0, 512] strides[1024, 2], %y: out f32[%s0, 512], %n: inout i64[], %t: scratch bf16[%s0 * %s1 + 1]) errors(1: IndexError "index \"out\" of range", 7: RuntimeError "x") {
  for %i in 0..%s0 parallel grain(8) {
    alloc %acc: register f32[4, 16]
    alloc %tile: stack f32[4, 16]
    for %j in 0..512 vector(16) unroll(4) {
      let %v: f32 = %x[%i, %j] + load(%x[%i, %j + 1], %j < 511, 0.5)
      store %y[%i, %j] = max(%v, 0.0) if %v > 0.0 & %j != 3 stream
      store %t[%i] = bf16(%v * (1.0 - %v))
    }
    for %k in 0..16 unrolled {
      if %k < 3 {
        check %n[] >= 0 else 1
      } else {
        atomic add %n[] = 1 if %k == 4
      }
    }
    contract %acc[0, 0] by (16, 1) += %tile[0, 0] by (16, 1) * %x[%i, 0] by (1024, 2) tile(4, 16) live(%s0) depth(%s1)
    contract %acc[0, 0] by (16, 1) = %tile[0, 0] by (16, 16, 1) * %x[%i, 0] by (1024, 2 * %s0, 2) tile(4, 16) depth(%s0, 2)
  }
  barrier
  reduce %r in 0..%s0 vector unroll(2) (%best: f32 = -inf, %at: i64 = 0) {
    let %w: f32 = %x[%r, 0]
    yield select(%w > %best, %w, %best), select(%w > %best, %r, %at)
  } combine (%bl, %al, %br, %ar) {
    let %is_left: bool = %bl > %br | %bl == %br & %al <= %ar
    yield select(%is_left, %bl, %br), select(%is_left, %al, %ar)
  } -> %value, %index
  store %n[] = %index
  reduce %p in 0..%s0 scan(8) unroll(2) (%sofar: f64 = 0.0) {
    let %next: f64 = %sofar + f64(%x[%p, 0])
    store %y[%p, 0] = f32(%next)
    yield %next
  } combine (%before, %here) {
    yield %before + %here
  } -> %all
  reduce %q in 1..floordiv(%s0, 2) unroll(4) (%sum: f64 = 0.0) {
    yield fma(f64(%x[%q, 0]), f64(f32(2.5)), %sum)
  } -> %total
}
)";

TEST(LoopTextTest, EveryFormPrintsAsItIsRead) { EXPECT_EQ(reprint(kEverything), kEverything); }

TEST(LoopTextTest, ManyKernelsInOneText) {
  Arena arena;
  const std::string text = std::string(kEverything) + "// a comment\n" + "kernel @two() {\n}\n";
  const std::vector<Kernel> kernels = parse_kernels(arena, text);
  ASSERT_EQ(kernels.size(), 2U);
  EXPECT_EQ(kernels[1].name, "two");
  EXPECT_EQ(print(kernels[1]), "kernel @two() {\n}\n");
}

class LoopExprTextTest : public testing::Test {
 protected:
  LoopExprTextTest()
      : variables_{
            Variable::make(arena_, DType::kF32, "x"), Variable::make(arena_, DType::kF32, "y"),
            Variable::make(arena_, DType::kI64, "n"), Variable::make(arena_, DType::kBool, "b"),
            Variable::make(arena_, DType::kF16, "h")} {}

  Expr parse(std::string_view text, DType dtype = DType::kF32) {
    return parse_expr(arena_, text, variables_, dtype);
  }

  Arena arena_;
  std::vector<const Variable*> variables_;
};

TEST_F(LoopExprTextTest, PrecedenceAndGrouping) {
  for (const std::string_view text :
       {"%x + %y * %x", "(%x + %y) * %x", "%x - (%y - %x)", "%x - %y - %x", "%x * (%y * %x)",
        "%x < %y & %x + 1.0 < %y | %b ^ %b", "(%x < %y) == %b", "%b == (%x < %y)", "(%b | %b) & %b",
        "neg(%x)", "%x + -1.0", "-1.0 * %x", "%x - -1.0", "select(%b, %x, 0.0)",
        "fma(%x, 2.0, %y)"})
    EXPECT_EQ(print(parse(text)), text);
  EXPECT_EQ(print(parse("-%x")), "neg(%x)");
  EXPECT_EQ(print(parse("- -1.0")), "neg(f32(-1.0))");
}

TEST_F(LoopExprTextTest, LiteralsTakeTheDtypeOfTheirPartner) {
  EXPECT_EQ(parse("%n + 1"),
            apply(arena_, ScalarOp::kAdd, {variables_[2], int_constant(arena_, 1)}));
  EXPECT_EQ(print(parse("max(%x, 0)")), "max(%x, 0.0)");
  EXPECT_EQ(print(parse("%n * 2 < 3 + 4")), "%n * 2 < 3 + 4");
  EXPECT_EQ(print(parse("i64(3) == 3")), "i64(3) == i64(3)");
  EXPECT_EQ(parse("1", DType::kI32)->dtype, DType::kI32);
  EXPECT_EQ(parse("1")->dtype, DType::kF32);
  EXPECT_EQ(parse("true", DType::kBool)->dtype, DType::kBool);
  EXPECT_EQ(print(parse("f16(1.5)")), "f16(1.5)");
  EXPECT_EQ(print(parse("select(%b, %h, 65504)", DType::kF32)), "select(%b, %h, 65500.0)");
  EXPECT_EQ(print(parse("f64(f32(0.1))")), "f64(f32(0.1))");
  EXPECT_EQ(parse("f32(0.1)")->kind, ExprKind::kConstant);
}

TEST_F(LoopExprTextTest, FloatsReadBackTheSame) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    uint64_t state = 1;
    for (int i = 0; i < 2000; ++i) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const Expr e = Constant::make(arena_, dtype, state >> (64 - dtype_size(dtype) * 8));
      ASSERT_EQ(parse(print(e)), e) << print(e);
    }
    for (const double value : {0.0, -0.0, 1.0, 1e20, 5e-324, 1e-45, 0.1, 1e-8}) {
      const Expr e = Constant::make_float(arena_, dtype, value);
      ASSERT_EQ(parse(print(e)), e) << print(e);
    }
  }
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(print(Constant::make_float(arena_, DType::kF32, -infinity)), "f32(-inf)");
  EXPECT_EQ(print(parse("nan")), "f32(nan)");
  EXPECT_EQ(parse("-inf"), Constant::make_float(arena_, DType::kF32, -infinity));
  EXPECT_EQ(print(Constant::make_float(arena_, DType::kBF16, 1.0 / 3)), "bf16(0.334)");
  EXPECT_EQ(parse("0x1.8p+1"), Constant::make_float(arena_, DType::kF32, 3));
  // One rounding from decimal to f32: by way of f64 this would round to even, down.
  EXPECT_EQ(parse("1.00000005960464477550"), parse("1.00000011920928955078125"));
}

TEST_F(LoopExprTextTest, IntegersAreCheckedAgainstTheirDtype) {
  EXPECT_EQ(parse("-9223372036854775808", DType::kI64),
            int_constant(arena_, std::numeric_limits<int64_t>::min()));
  EXPECT_THROW(parse("9223372036854775808", DType::kI64), Error);
  EXPECT_THROW(parse("256", DType::kU8), Error);
  EXPECT_THROW(parse("-1", DType::kU8), Error);
  EXPECT_THROW(parse("1.5", DType::kI64), Error);
  EXPECT_THROW(parse("1", DType::kBool), Error);
  EXPECT_THROW(parse("1e40", DType::kF32), Error);
}

TEST(LoopTextErrorTest, MessagesNamePlaceFoundAndExpected) {
  const auto body = [](std::string_view text) {
    return parse_error("kernel @k(%x: in f32[4], %n: in i64[4], %y: out f32[4]) {\n" +
                       std::string(text) + "\n}");
  };
  EXPECT_EQ(body("store %y[0] = %z"), "2:15: %z is not defined");
  EXPECT_EQ(body("store %y[0] = %x[0] + %n[0]"), "2:21: add: operands are f32 and i64");
  EXPECT_EQ(body("store %y[0, 1] = 0.0"), "2:7: %y: 2 indices, but 1 dimensions");
  EXPECT_EQ(body("store %y[0] = %n[0]"), "2:7: %y: value is i64, the buffer holds f32");
  EXPECT_EQ(body("store %y[%x[0]] = 0.0"), "2:7: %y: index is f32, expected i64");
  EXPECT_EQ(body("let %a: f33 = 0"), "2:9: unknown dtype 'f33'");
  EXPECT_EQ(body("let %a: i64 = 0\n let %a: i64 = 1"), "3:6: %a is defined twice");
  EXPECT_EQ(body("let %a: i64 = frob(1)"), "2:15: unknown op 'frob'");
  EXPECT_EQ(body("let %a: f32 = add(1)"), "2:15: add: 1 operands, expected 2");
  EXPECT_EQ(body("let %a: i64 = sqrt(%n[0])"), "2:15: sqrt: operand is i64, expected f32 or f64");
  EXPECT_EQ(body("frob"), "2:1: expected a statement, found 'frob'");
  EXPECT_EQ(body("check true else 0"), "2:17: error code 0, expected above 0");
  EXPECT_EQ(body("atomic mul %y[0] = 1.0"),
            "2:8: atomic mul: the op must be add, min, max, and, or, xor");
  EXPECT_EQ(body("for %i in 0..1.5 {}"), "2:14: literal 1.5 where i64 is expected");
  EXPECT_EQ(body("for %i in 0..4 unroll(0) {}"), "2:5: loop %i: unroll must be at least 1");
  EXPECT_EQ(body("for %i in 0..4 {} let %a: i64 = %i"), "2:33: %i is not defined");
  EXPECT_EQ(body("reduce %i in 0..4 (%a: f32 = 0) { yield %a, %a } -> %r"),
            "2:19: reduce yields 2 values, but carries 1");
  EXPECT_EQ(body("let %a: f32 = %x"), "3:1: expected '[', found '}'");
  EXPECT_EQ(body("alloc %a: global f32[4]"), "2:11: alloc: a global buffer is a parameter");
  EXPECT_EQ(
      body("alloc %a: stack f32[4]\ncontract %a[0] by (1) = %x[0] by (1, 1) * %x[0] by (1, 1) "
           "tile(1, 1) depth(1)"),
      "3:1: %a: tile with 1 steps, expected 2");
  EXPECT_EQ(body("alloc %a: stack f32[4]\ncontract %a[0] by (1, 1) = %x[0] by (1, 1) * "
                 "%x[0] by (1, 1) tile(1, 1) depth(1, 2)"),
            "3:1: %x: tile with 2 steps, expected 3");
  EXPECT_EQ(body("alloc %a: stack f32[4]\ncontract %a[0] by (1, 1) = %x[0] by (0, 1) rows(0, 1) * "
                 "%x[0] by (1, 1) tile(3, 1) depth(1)"),
            "3:1: %x: tile with places of 2 rows, expected 3");
  EXPECT_EQ(body("alloc %a: stack f32[4]\ncontract %a[0] by (1, 1) = %x[0] by (1, 1) * "
                 "%x[0] by (0, 1) rows(0) tile(1, 1) depth(1)"),
            "3:1: %x: tile with places of 1 rows, expected 0");
  EXPECT_EQ(body("alloc %a: stack i32[4]\ncontract %a[0] by (1, 1) = %x[0] by (1, 1) * "
                 "%x[0] by (1, 1) tile(1, 1) depth(1)"),
            "3:1: contract: %x is f32, which cannot be accumulated in i32");
  EXPECT_EQ(body("if %x[0] {}"), "2:1: condition is f32, expected bool");
  EXPECT_THAT(parse_error("kernel @k() {"), HasSubstr("expected a statement, found end of text"));
  EXPECT_THAT(parse_error("kernel @k() {} x"), HasSubstr("expected end of text after one kernel"));
  EXPECT_THAT(parse_error("kernel @k(%x: in f32[%n]) {}"), StartsWith("1:22: %n is not defined"));
}

TEST(LoopTextErrorTest, DeepNestingIsAnErrorNotACrash) {
  std::string deep = "kernel @k(%y: out f32[]) {\nstore %y[] = ";
  for (int i = 0; i < 100000; ++i) deep += "(";
  EXPECT_THAT(parse_error(deep), HasSubstr("nested too deeply"));
  std::string blocks = "kernel @k() {\n";
  for (int i = 0; i < 100000; ++i) blocks += "if true {";
  EXPECT_THAT(parse_error(blocks), HasSubstr("nested too deeply"));
}

TEST(LoopTextTest, MaskAndIfStatementAreToldApart) {
  const std::string text = R"(kernel @k(%x: in f32[4], %y: out f32[4]) {
  store %y[0] = %x[0]
  if %x[0] > 0.0 {
    store %y[1] = 1.0 if %x[1] > 0.0
    if true {
    }
  }
}
)";
  EXPECT_EQ(reprint(text), text);
}

TEST(CanonicalizeTest, NamesFollowTheOrderOfTheText) {
  Arena arena;
  const Kernel kernel = parse_kernel(arena, R"(
    kernel @scale(%rows: i64; %in: in f32[%rows], %1: out f32[%rows]) {
      for %0 in 0..%rows parallel {
        alloc %t: stack f32[1]
        store %t[0] = %in[%0]
        reduce %k in 0..4 (%sum: f32 = 0.0) { yield %sum + %t[0] } combine (%l, %r) { yield %l + %r } -> %s
        let %z: f32 = %s * 2.0
        store %1[%0] = %z
      }
    })");
  const Kernel canonical = canonicalize(arena, kernel);
  EXPECT_EQ(print(canonical), R"(kernel @k(%s0: i64; %b0: in f32[%s0], %b1: out f32[%s0]) {
  for %0 in 0..%s0 parallel {
    alloc %b2: stack f32[1]
    store %b2[0] = %b0[%0]
    reduce %1 in 0..4 (%2: f32 = 0.0) {
      yield %2 + %b2[0]
    } combine (%3, %4) {
      yield %3 + %4
    } -> %5
    let %6: f32 = %5 * 2.0
    store %b1[%0] = %6
  }
}
)");
  EXPECT_EQ(print(canonicalize(arena, canonical)), print(canonical));
  verify(canonical);
}

}  // namespace
}  // namespace mlcc::loop
