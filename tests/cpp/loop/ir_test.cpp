#include "loop/ir.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "loop/scalar_value.h"
#include "loop/text.h"
#include "support/error.h"

namespace mlcc::loop {
namespace {

class IrTest : public testing::Test {
 protected:
  Expr i64(int64_t value) { return int_constant(arena_, value); }
  const Variable* var(DType dtype, std::string_view name) {
    return Variable::make(arena_, dtype, name);
  }
  const Buffer* buffer(DType dtype, std::vector<Expr> shape, Scope scope = Scope::kGlobal) {
    return arena_.make_buffer({"x", dtype, scope, Access::kInOut, std::move(shape), {}});
  }

  Arena arena_;
};

TEST_F(IrTest, EqualExpressionsAreTheSamePointer) {
  const Variable* x = var(DType::kF32, "x");
  const Expr one = Constant::make_float(arena_, DType::kF32, 1);
  EXPECT_EQ(Apply::make(arena_, ScalarOp::kAdd, {x, one}),
            Apply::make(arena_, ScalarOp::kAdd, {x, one}));
  EXPECT_NE(Apply::make(arena_, ScalarOp::kAdd, {x, one}),
            Apply::make(arena_, ScalarOp::kAdd, {one, x}));
  EXPECT_EQ(var(DType::kF32, "x"), x);
  EXPECT_NE(var(DType::kF64, "x"), static_cast<Expr>(x));
  EXPECT_NE(Constant::make_int(arena_, DType::kI32, 1), Constant::make_int(arena_, DType::kI64, 1));
  const Buffer* a = buffer(DType::kF32, {i64(4)});
  const Buffer* b = buffer(DType::kF32, {i64(4)});
  EXPECT_EQ(Load::make(arena_, a, {i64(0)}), Load::make(arena_, a, {i64(0)}));
  EXPECT_NE(Load::make(arena_, a, {i64(0)}), Load::make(arena_, b, {i64(0)}));
}

TEST_F(IrTest, CastToTheSameDtypeIsTheValue) {
  const Variable* x = var(DType::kF32, "x");
  EXPECT_EQ(Cast::make(arena_, DType::kF32, x), x);
  EXPECT_EQ(Cast::make(arena_, DType::kF64, x)->dtype, DType::kF64);
}

TEST_F(IrTest, DowncastsAnswerNullForOtherKinds) {
  const Expr one = i64(1);
  EXPECT_NE(as<Constant>(one), nullptr);
  EXPECT_EQ(as<Load>(one), nullptr);
  EXPECT_EQ(as<Load>(Expr{nullptr}), nullptr);
}

TEST_F(IrTest, ConstantsRoundAndWrap) {
  EXPECT_EQ(as<Constant>(Constant::make_int(arena_, DType::kU8, -1))->as_int(), 255);
  EXPECT_EQ(as<Constant>(Constant::make_int(arena_, DType::kI8, 200))->as_int(), -56);
  EXPECT_EQ(as<Constant>(Constant::make_int(arena_, DType::kBool, 7))->bits, 1U);
  EXPECT_EQ(as<Constant>(Constant::make_float(arena_, DType::kBF16, 1.0 + 1.0 / 256))->as_double(),
            1.0);
  EXPECT_EQ(as<Constant>(Constant::make_int(arena_, DType::kF32, 3))->as_double(), 3.0);
}

TEST_F(IrTest, ThereIsOneNanPerDtype) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32, DType::kF64}) {
    const uint64_t nan = encode_float(dtype, std::numeric_limits<double>::quiet_NaN());
    const uint64_t sign = uint64_t{1} << (dtype_size(dtype) * 8 - 1);
    EXPECT_EQ(Constant::make(arena_, dtype, nan), Constant::make(arena_, dtype, nan | sign | 1));
  }
}

TEST_F(IrTest, IllTypedNodesCannotExist) {
  const Variable* f = var(DType::kF32, "f");
  const Variable* n = var(DType::kI64, "n");
  const Variable* h = var(DType::kBF16, "h");
  const Variable* b = var(DType::kBool, "b");
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kAdd, {f, n}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kAdd, {f}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kAdd, {b, b}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kAdd, {h, h}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kDiv, {n, n}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kAnd, {f, f}), InternalError);
  EXPECT_THROW(Apply::make(arena_, ScalarOp::kSelect, {n, f, f}), InternalError);
  EXPECT_THROW(Constant::make(arena_, DType::kU8, 256), InternalError);
  EXPECT_THROW(Constant::make(arena_, DType::kBool, 2), InternalError);
  const Buffer* x = buffer(DType::kF32, {n});
  EXPECT_THROW(Load::make(arena_, x, {}), InternalError);
  EXPECT_THROW(Load::make(arena_, x, {f}), InternalError);
  EXPECT_THROW(Load::make(arena_, x, {n}, f), InternalError);
  EXPECT_THROW(Load::make(arena_, x, {n}, nullptr, f), InternalError);
  EXPECT_THROW(Load::make(arena_, x, {n}, b, n), InternalError);
  EXPECT_THROW(Store::make(arena_, x, {n}, n), InternalError);
  EXPECT_THROW(Let::make(arena_, f, n), InternalError);
  EXPECT_THROW(If::make(arena_, n, {}), InternalError);
  EXPECT_THROW(Check::make(arena_, b, 0), InternalError);
  EXPECT_THROW(Alloc::make(arena_, x), InternalError);
  EXPECT_THROW(Atomic::make(arena_, ScalarOp::kMul, x, {n}, f), InternalError);
}

TEST_F(IrTest, LoopModesHoldOnlyWhatTheirKindHas) {
  const Variable* i = var(DType::kI64, "i");
  const auto make = [&](LoopMode mode) { return For::make(arena_, i, i64(0), i64(4), mode, {}); };
  EXPECT_NO_THROW(make({.kind = LoopKind::kVector, .width = 8, .unroll = 2}));
  EXPECT_NO_THROW(make({.kind = LoopKind::kParallel, .grain = 8}));
  EXPECT_THROW(make({.kind = LoopKind::kSerial, .width = 8}), InternalError);
  EXPECT_THROW(make({.kind = LoopKind::kVector, .grain = 8}), InternalError);
  EXPECT_THROW(make({.kind = LoopKind::kSerial, .unroll = 0}), InternalError);
  EXPECT_NO_THROW(make({.kind = LoopKind::kParallel, .group = 1024}));
  EXPECT_THROW(make({.kind = LoopKind::kParallel, .group = 2048}), InternalError);
  EXPECT_THROW(make({.kind = LoopKind::kParallel, .group = 3}), InternalError);
  EXPECT_THROW(make({.kind = LoopKind::kParallel, .group = -1}), InternalError);
  EXPECT_THROW(make({.kind = LoopKind::kSerial, .group = 32}), InternalError);
}

TEST_F(IrTest, ReducesCarryWhatTheyYield) {
  const Variable* i = var(DType::kI64, "i");
  const Variable* sum = var(DType::kF32, "sum");
  const Carried carried{sum, Constant::make_float(arena_, DType::kF32, 0), var(DType::kF32, "r")};
  const auto make = [&](std::vector<Carried> list, std::vector<Expr> yields,
                        std::optional<Combine> combine) {
    return Reduce::make(arena_, i, i64(0), i64(4), {}, std::move(list), {}, std::move(yields),
                        std::move(combine));
  };
  EXPECT_NO_THROW(make({carried}, {sum}, std::nullopt));
  EXPECT_THROW(make({carried}, {i}, std::nullopt), InternalError);
  EXPECT_THROW(make({carried}, {}, std::nullopt), InternalError);
  EXPECT_THROW(make({}, {}, std::nullopt), InternalError);
  EXPECT_THROW(make({carried}, {sum}, Combine{{sum}, {i}, {}, {sum}}), InternalError);
}

TEST_F(IrTest, ApplyFoldsIntegers) {
  const Variable* n = var(DType::kI64, "n");
  EXPECT_EQ(apply(arena_, ScalarOp::kMul, {i64(6), i64(7)}), i64(42));
  EXPECT_EQ(apply(arena_, ScalarOp::kAdd, {n, i64(0)}), n);
  EXPECT_EQ(apply(arena_, ScalarOp::kAdd, {i64(0), n}), n);
  EXPECT_EQ(apply(arena_, ScalarOp::kMul, {n, i64(1)}), n);
  EXPECT_EQ(apply(arena_, ScalarOp::kMul, {n, i64(0)}), i64(0));
  EXPECT_EQ(apply(arena_, ScalarOp::kSub, {n, i64(0)}), n);
  EXPECT_EQ(apply(arena_, ScalarOp::kLt, {i64(1), i64(2)})->dtype, DType::kBool);
  // A division without an answer stays as it is, and floats are left alone.
  EXPECT_EQ(apply(arena_, ScalarOp::kFloorDiv, {i64(1), i64(0)})->kind, ExprKind::kApply);
  const Variable* f = var(DType::kF32, "f");
  const Expr zero = Constant::make_float(arena_, DType::kF32, 0);
  EXPECT_EQ(apply(arena_, ScalarOp::kAdd, {f, zero})->kind, ExprKind::kApply);
}

TEST_F(IrTest, SymbolicIntegersTranslateBothWays) {
  const SymExpr s0 = SymExpr::symbol("s0");
  const SymExpr e = s0 * s0 * 3 + SymExpr::floordiv(s0 + 5, 4) - SymExpr::mod(s0, 7) - 2;
  const Expr translated = from_symbolic(arena_, e);
  EXPECT_EQ(translated->dtype, DType::kI64);
  EXPECT_EQ(to_symbolic(translated), e);
  EXPECT_EQ(from_symbolic(arena_, s0), Variable::make(arena_, DType::kI64, "s0"));
  const Buffer* x = buffer(DType::kI64, {i64(4)});
  EXPECT_EQ(to_symbolic(Load::make(arena_, x, {i64(0)})), std::nullopt);
}

TEST_F(IrTest, FreshNamesAreNew) {
  EXPECT_EQ(arena_.fresh_name("acc"), "acc");
  EXPECT_EQ(arena_.fresh_name("acc"), "acc.1");
  var(DType::kF32, "acc.2");
  EXPECT_EQ(arena_.fresh_name("acc"), "acc.3");
  buffer(DType::kF32, {});
  EXPECT_EQ(arena_.fresh_name("x"), "x.1");
}

// ---- Scalar values ------------------------------------------------------------------------------

// All f16 values, and the rounding of what lies between two of them.
TEST(ScalarValueTest, HalfPrecisionConversionsAreExact) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    const uint64_t infinity = encode_float(dtype, std::numeric_limits<double>::infinity());
    for (uint64_t bits = 0; bits < infinity; ++bits) {
      const double low = decode_float(dtype, bits);
      ASSERT_EQ(encode_float(dtype, low), bits);
      ASSERT_EQ(encode_float(dtype, -low), bits | 0x8000);
      if (bits + 1 == infinity) break;
      const double high = decode_float(dtype, bits + 1);
      ASSERT_LT(low, high);
      const double middle = (low + high) / 2;  // exact in f32: a narrow format has few bits
      ASSERT_EQ(encode_float(dtype, middle), bits % 2 == 0 ? bits : bits + 1) << bits;
      const auto above = static_cast<double>(std::nextafterf(static_cast<float>(middle), INFINITY));
      ASSERT_EQ(encode_float(dtype, above), bits + 1) << bits;
    }
  }
  EXPECT_EQ(encode_float(DType::kF16, 65519.99), 0x7bffU);
  EXPECT_EQ(encode_float(DType::kF16, 65520), 0x7c00U);
  EXPECT_TRUE(std::isnan(decode_float(DType::kF16, encode_float(DType::kF16, NAN))));
  EXPECT_TRUE(std::isnan(decode_float(DType::kBF16, encode_float(DType::kBF16, NAN))));
}

uint64_t eval(ScalarOp op, DType dtype, std::vector<int64_t> values) {
  std::vector<uint64_t> bits;
  for (const int64_t v : values) bits.push_back(encode_int(dtype, v));
  return static_cast<uint64_t>(decode_int(dtype, evaluate(op, dtype, bits).value()));
}

TEST(ScalarValueTest, IntegersWrapAndDivideAsStated) {
  const auto check = [](ScalarOp op, DType dtype, std::vector<int64_t> args, int64_t expected) {
    EXPECT_EQ(static_cast<int64_t>(eval(op, dtype, args)), expected) << scalar_op_name(op);
  };
  check(ScalarOp::kAdd, DType::kI8, {127, 1}, -128);
  check(ScalarOp::kMul, DType::kU8, {16, 17}, 16);
  check(ScalarOp::kNeg, DType::kI32, {INT32_MIN}, INT32_MIN);
  check(ScalarOp::kAbs, DType::kI64, {INT64_MIN}, INT64_MIN);
  check(ScalarOp::kTruncDiv, DType::kI64, {-7, 2}, -3);
  check(ScalarOp::kFloorDiv, DType::kI64, {-7, 2}, -4);
  check(ScalarOp::kFloorDiv, DType::kI64, {7, -2}, -4);
  check(ScalarOp::kFloorDiv, DType::kI64, {-8, 2}, -4);
  check(ScalarOp::kRem, DType::kI64, {-7, 2}, -1);
  check(ScalarOp::kMod, DType::kI64, {-7, 2}, 1);
  check(ScalarOp::kMod, DType::kI64, {7, -2}, -1);
  check(ScalarOp::kShl, DType::kI32, {1, 31}, INT32_MIN);
  check(ScalarOp::kShl, DType::kI32, {1, 32}, 0);
  check(ScalarOp::kShr, DType::kI8, {-128, 3}, -16);
  check(ScalarOp::kShr, DType::kI8, {-128, 100}, -1);
  check(ScalarOp::kShr, DType::kU8, {200, 9}, 0);
  check(ScalarOp::kLshr, DType::kI8, {-128, 3}, 16);
  check(ScalarOp::kLshr, DType::kI64, {-1, -1}, 0);
  check(ScalarOp::kNot, DType::kU8, {1}, 254);
  check(ScalarOp::kNot, DType::kBool, {1}, 0);
}

TEST(ScalarValueTest, UndefinedDivisionsHaveNoAnswer) {
  for (const ScalarOp op :
       {ScalarOp::kTruncDiv, ScalarOp::kFloorDiv, ScalarOp::kRem, ScalarOp::kMod}) {
    const std::vector<uint64_t> by_zero = {1, 0};
    EXPECT_EQ(evaluate(op, DType::kI32, by_zero), std::nullopt);
    const std::vector<uint64_t> lowest = {encode_int(DType::kI32, INT32_MIN),
                                          encode_int(DType::kI32, -1)};
    EXPECT_EQ(evaluate(op, DType::kI32, lowest), std::nullopt);
    const std::vector<uint64_t> fine = {128, 255};
    EXPECT_NE(evaluate(op, DType::kU8, fine), std::nullopt);
  }
}

TEST(ScalarValueTest, FloatsPropagateNanAndRound) {
  const auto eval_f32 = [](ScalarOp op, std::vector<double> values) {
    std::vector<uint64_t> bits;
    for (const double v : values) bits.push_back(encode_float(DType::kF32, v));
    const uint64_t result = evaluate(op, DType::kF32, bits).value();
    return decode_float(DType::kF32, result);
  };
  EXPECT_TRUE(std::isnan(eval_f32(ScalarOp::kMax, {NAN, 1})));
  EXPECT_TRUE(std::isnan(eval_f32(ScalarOp::kMin, {1, NAN})));
  EXPECT_EQ(eval_f32(ScalarOp::kRound, {2.5}), 2);
  EXPECT_EQ(eval_f32(ScalarOp::kRem, {-7, 2}), -1);
  EXPECT_TRUE(std::signbit(eval_f32(ScalarOp::kNeg, {0})));
  EXPECT_EQ(eval_f32(ScalarOp::kSigmoid, {-1000}), 0);
  EXPECT_EQ(eval_f32(ScalarOp::kTanh, {1}),
            static_cast<double>(static_cast<float>(std::tanh(1.0))));
  EXPECT_EQ(evaluate(ScalarOp::kNe, DType::kF32,
                     std::vector<uint64_t>{encode_float(DType::kF32, NAN), 0}),
            1U);
}

TEST(ScalarValueTest, ConversionsFollowTheRules) {
  EXPECT_EQ(convert(DType::kI64, DType::kU8, static_cast<uint64_t>(-1)), 255U);
  EXPECT_EQ(
      decode_int(DType::kI32, convert(DType::kF32, DType::kI32, encode_float(DType::kF32, -2.9))),
      -2);
  EXPECT_EQ(convert(DType::kF32, DType::kBool, encode_float(DType::kF32, NAN)), 1U);
  EXPECT_EQ(convert(DType::kF32, DType::kBool, encode_float(DType::kF32, -0.0)), 0U);
  EXPECT_EQ(convert(DType::kU8, DType::kI8, 200), 200U);
  // Directly to f32, without a stop at f64: 2^60 + 2^36 + 1 is just above half way between two f32.
  const int64_t big = (int64_t{1} << 60) + (int64_t{1} << 36) + 1;
  EXPECT_EQ(
      decode_float(DType::kF32, convert(DType::kI64, DType::kF32, static_cast<uint64_t>(big))),
      static_cast<double>(static_cast<float>(big)));
  EXPECT_EQ(convert(DType::kBool, DType::kF32, 1), encode_float(DType::kF32, 1));
}

}  // namespace
}  // namespace mlcc::loop
