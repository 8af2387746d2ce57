#include <gtest/gtest.h>

#include "harness.h"
#include "loop/type_rules.h"

namespace mlcc::codegen::cpu::testing {
namespace {

using loop::ScalarOp;

constexpr DType kDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                             DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

std::string name_of(DType dtype) { return std::string(dtype_name(dtype)); }

constexpr const char* kBinary = R"(
kernel @k(%n: i64; %a: in $T[%n], %b: in $T[%n], %c: in $T[%n], %m: in bool[%n], %y: out $R[%n]) {
  for %i in 0..%n vector($W) unroll($U) {
    store %y[%i] = $EXPR
  }
})";

std::string call_of(ScalarOp op) {
  const char* operands[] = {"%a[%i]", "%b[%i]", "%c[%i]"};
  if (op == ScalarOp::kSelect) return "select(%m[%i], %a[%i], %b[%i])";
  std::string text = std::string(loop::scalar_op_name(op)) + "(";
  for (int i = 0; i < loop::scalar_op_arity(op); ++i)
    text += std::string(i ? ", " : "") + operands[i];
  return text + ")";
}

bool is_function(ScalarOp op) { return loop::scalar_op_class(op) == loop::OpClass::kFunction; }
bool is_division(ScalarOp op) {
  return op == ScalarOp::kTruncDiv || op == ScalarOp::kFloorDiv || op == ScalarOp::kRem ||
         op == ScalarOp::kMod;
}

class ScalarOpTest : public ::testing::TestWithParam<int> {};

// Every op on every dtype that it takes.
TEST_P(ScalarOpTest, agrees_with_interpreter) {
  const auto op = static_cast<ScalarOp>(GetParam());
  for (DType dtype : kDTypes) {
    if (loop::operand_type_error(op, dtype)) continue;
    Comparison how;
    how.needs_fma = dtype == DType::kF64 && !is_function(op);
    how.zero_sign = op != ScalarOp::kMin && op != ScalarOp::kMax;
    if (is_function(op)) how.ulps = dtype == DType::kF64 ? 5 : 3;
    if (is_division(op) && !is_float(dtype)) how.ranges["b"] = {1, 9};
    const std::string text =
        substitute(kBinary, {{"T", name_of(dtype)},
                             {"R", name_of(loop::apply_result_type(op, dtype))},
                             {"W", "8"},
                             {"U", "2"},
                             {"EXPR", call_of(op)}});
    expect_as_interpreted(text, {211}, how);
  }
}

INSTANTIATE_TEST_SUITE_P(all, ScalarOpTest,
                         ::testing::Range(0, static_cast<int>(ScalarOp::kSelect) + 1),
                         [](const auto& info) {
                           return std::string(
                               loop::scalar_op_name(static_cast<ScalarOp>(info.param)));
                         });

TEST(Pointwise, tails_of_every_length) {
  for (int width : {1, 4, 8, 16}) {
    for (int unroll : {1, 2, 3}) {
      const std::string text =
          substitute(kBinary, {{"T", "f32"},
                               {"R", "f32"},
                               {"W", std::to_string(width)},
                               {"U", std::to_string(unroll)},
                               {"EXPR", "max(%a[%i] + %b[%i], 0.0) * %c[%i]"}});
      for (int64_t n = 0; n <= 2 * width * unroll + 1; ++n)
        expect_as_interpreted(text, {n}, {.zero_sign = false});
    }
  }
}

TEST(Pointwise, tails_of_every_dtype) {
  for (DType dtype : kDTypes) {
    const std::string text = substitute(kBinary, {{"T", name_of(dtype)},
                                                  {"R", name_of(dtype)},
                                                  {"W", "16"},
                                                  {"U", "1"},
                                                  {"EXPR", call_of(ScalarOp::kSelect)}});
    for (int64_t n = 0; n <= 33; ++n) expect_as_interpreted(text, {n});
  }
}

TEST(Pointwise, constant_extents) {
  for (int n : {1, 7, 16, 17, 32, 48, 63, 64, 100}) {
    const std::string text = substitute(R"(
kernel @k(%unused: i64; %x: in f32[$N], %y: out f32[$N]) {
  for %i in 0..$N vector(16) unroll(4) { store %y[%i] = %x[%i] * 2.0 }
})",
                                        {{"N", std::to_string(n)}});
    expect_as_interpreted(text, {0});
  }
}

TEST(Pointwise, natural_width_and_loop_begin) {
  const char* text = R"(
kernel @k(%b: i64, %n: i64; %x: in f32[%n], %y: inout f32[%n]) {
  for %i in %b..%n vector { store %y[%i] = %x[%i] + f32(%i) }
})";
  for (int64_t begin : {0, 1, 5, 40, 41}) expect_as_interpreted(text, {begin, 40});
}

TEST(Pointwise, parallel_rows_split_anywhere) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %b: in f32[%n], %y: out f32[%m, %n]) {
  let %half: i64 = truncdiv(%m, 2)
  for %i in 0..%m parallel grain(2) {
    for %j in 0..%n vector(16) unroll(2) {
      store %y[%i, %j] = %x[%i, %j] + %b[%j] + f32(%half)
    }
  }
})";
  for (int64_t m : {0, 1, 2, 13}) expect_as_interpreted(text, {m, 37});
}

TEST(Pointwise, parallel_loop_not_from_zero) {
  const char* text = R"(
kernel @k(%n: i64; %y: inout i64[%n]) {
  for %i in 3..%n parallel { store %y[%i] = %i * 7 }
  barrier
  store %y[0] = %y[%n - 1] + 1
})";
  expect_as_interpreted(text, {20});
}

// Only what the graph rounds to f32 is rounded: no contraction of a * b + c.
TEST(Pointwise, products_and_sums_are_not_contracted) {
  const std::string text = substitute(
      kBinary,
      {{"T", "f32"}, {"R", "f32"}, {"W", "16"}, {"U", "2"}, {"EXPR", "%a[%i] * %b[%i] + %c[%i]"}});
  expect_as_interpreted(text, {1000});
}

// Divisors of 0 in lanes whose results are not stored must not trap.
TEST(Pointwise, masked_division_by_zero) {
  const char* text = R"(
kernel @k(%n: i64; %a: in $T[%n], %b: in $T[%n], %y: inout $T[%n]) {
  for %i in 0..%n vector(8) {
    if %b[%i] > $T(0) { store %y[%i] = floordiv(%a[%i], %b[%i]) }
  }
})";
  for (const char* dtype : {"i8", "i16", "i32", "i64", "u8"})
    expect_as_interpreted(substitute(text, {{"T", dtype}}), {100}, {.ranges = {{"b", {0, 4}}}});
}

// Signed division over operands of every sign, and the extremes.
TEST(Pointwise, division_of_negative_numbers) {
  const char* text = R"(
kernel @k(%n: i64; %a: in $T[%n], %b: in $T[%n], %q: out $T[%n], %r: out $T[%n], %f: out $T[%n], %m: out $T[%n]) {
  for %i in 0..%n vector(8) {
    let %d: $T = select(%b[%i] == $T(0), $T(3), %b[%i])
    let %e: $T = select(%d == $T(-1), $T(-2), %d)
    store %q[%i] = truncdiv(%a[%i], %e)
    store %r[%i] = rem(%a[%i], %e)
    store %f[%i] = floordiv(%a[%i], %e)
    store %m[%i] = mod(%a[%i], %e)
  }
})";
  for (const char* dtype : {"i8", "i16", "i32", "i64"})
    expect_as_interpreted(substitute(text, {{"T", dtype}}), {3000}, {});
}

TEST(Pointwise, float_remainder_over_the_whole_range) {
  const char* text = R"(
kernel @k(%n: i64; %x: in $T[%n], %y: in $T[%n], %z: out $T[%n]) {
  for %i in 0..%n vector(16) { store %z[%i] = rem(%x[%i], %y[%i]) }
})";
  for (const char* dtype : {"f32", "f64"})
    for (uint64_t seed = 1; seed <= 5; ++seed)
      expect_as_interpreted(substitute(text, {{"T", dtype}}), {2000},
                            {.needs_fma = true, .seed = seed});
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
