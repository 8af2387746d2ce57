#include "codegen/cpu/math.h"

#include <initializer_list>

// The polynomials are minimax fits of our own: linear programming on 2000 Chebyshev nodes against
// mpmath values, in the weight that makes the error one relative to the result; coefficients are
// rounded to f32 one by one from the lowest power, the rest fitted again after each. Every error of
// a fit below is in units of 2^-24 of the result.

namespace mlcc::codegen::cpu {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;

// Arithmetic on values of one type, f32 or a vector of it.
class Float32 {
 public:
  Float32(const OpContext& c, llvm::Value* x)
      : c_(c), type_(x->getType()), bits_(like(x, c.ir.getInt32Ty())) {}

  llvm::Value* number(double v) const { return ConstantFP::get(type_, v); }
  llvm::Value* integer(int64_t v) const {
    return ConstantInt::get(bits_, static_cast<uint64_t>(v));
  }
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* addend) const {
    return emit_fma(c_, a, b, addend);
  }
  llvm::Value* bits_of(llvm::Value* v) const { return c_.ir.CreateBitCast(v, bits_); }
  llvm::Value* from_bits(llvm::Value* v) const { return c_.ir.CreateBitCast(v, type_); }
  llvm::Value* to_float(llvm::Value* v) const { return c_.ir.CreateSIToFP(v, type_); }
  llvm::Value* magnitude(llvm::Value* v) const {
    return c_.ir.CreateUnaryIntrinsic(llvm::Intrinsic::fabs, v);
  }
  llvm::Value* with_sign_of(llvm::Value* v, llvm::Value* sign) const {
    return c_.ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, v, sign);
  }
  // NaN stays NaN in both: one instruction each.
  llvm::Value* at_least(double bound, llvm::Value* v) const {
    return c_.ir.CreateSelect(c_.ir.CreateFCmpOGT(number(bound), v), number(bound), v);
  }
  llvm::Value* at_most(double bound, llvm::Value* v) const {
    return c_.ir.CreateSelect(c_.ir.CreateFCmpOLT(number(bound), v), number(bound), v);
  }
  // Horner's rule; the highest power's coefficient first.
  llvm::Value* polynomial(llvm::Value* v, std::initializer_list<double> coefficients) const {
    llvm::Value* sum = nullptr;
    for (double coefficient : coefficients)
      sum = sum ? fma(sum, v, number(coefficient)) : number(coefficient);
    return sum;
  }
  llvm::IRBuilder<>& ir() const { return c_.ir; }

 private:
  const OpContext& c_;
  llvm::Type* type_;
  llvm::Type* bits_;
};

// 1.5 * 2^23: adding it rounds to an integer, which then stands in the low bits.
constexpr double kRounder = 12582912.0;
constexpr int64_t kRounderBits = 0x4b400000;
constexpr double kLog2E = 0x1.715476p+0;
// ln 2 in two parts; the first has 9 trailing zeros, so that its product with a small integer is
// exact even without fma.
constexpr double kLn2High = 0x1.62e400p-1;
constexpr double kLn2Low = 0x1.7f7d1cp-20;

// x = exponent * ln 2 + rest, |rest| <= 0.3467; |x| < 2^20.
struct Reduced {
  llvm::Value* exponent;  // i32
  llvm::Value* rest;
};

Reduced reduce_by_ln2(const Float32& f, llvm::Value* x) {
  llvm::Value* shifted = f.fma(x, f.number(kLog2E), f.number(kRounder));
  llvm::Value* rounded = f.ir().CreateFSub(shifted, f.number(kRounder));
  llvm::Value* rest = f.fma(rounded, f.number(-kLn2High), x);
  rest = f.fma(rounded, f.number(-kLn2Low), rest);
  return {f.ir().CreateSub(f.bits_of(shifted), f.integer(kRounderBits)), rest};
}

// 2^exponent, for -126 <= exponent <= 127.
llvm::Value* power_of_two(const Float32& f, llvm::Value* exponent) {
  return f.from_bits(f.ir().CreateShl(f.ir().CreateAdd(exponent, f.integer(127)), 23));
}

// A number as the rounded one and what that lacks.
struct Exact {
  llvm::Value* rounded;
  llvm::Value* rest;
};

// e^x for -104 <= x <= 89 or NaN. Scales in two steps, since 2^exponent alone may leave the range
// where the result does not; only the second step rounds.
Exact exp_in_range(const Float32& f, llvm::Value* x) {
  const auto [exponent, r] = reduce_by_ln2(f, x);
  // (e^r - 1 - r) / r^2, |r| <= 0.3467; error 0.053
  llvm::Value* p =
      f.polynomial(r, {0x1.6a4e74p-10, 0x1.12398p-7, 0x1.5558aep-5, 0x1.555492p-3, 0x1.fffffcp-2});
  llvm::Value* fraction = f.fma(f.ir().CreateFMul(r, r), p, r);
  llvm::Value* mantissa = f.ir().CreateFAdd(fraction, f.number(1.0));
  llvm::Value* rest = f.ir().CreateFSub(fraction, f.ir().CreateFSub(mantissa, f.number(1.0)));
  llvm::Value* half = f.ir().CreateAShr(exponent, 1);
  llvm::Value* first = power_of_two(f, half);
  llvm::Value* second = power_of_two(f, f.ir().CreateSub(exponent, half));
  const auto scaled = [&](llvm::Value* v) {
    return f.ir().CreateFMul(f.ir().CreateFMul(v, first), second);
  };
  return {scaled(mantissa), scaled(rest)};
}

// log(x) for normal x > 0, as exponent * ln 2 + log(1 + m) with 1 + m in [sqrt(1/2), sqrt(2)).
llvm::Value* log_of_normal(const Float32& f, llvm::Value* x, llvm::Value* exponent_bias) {
  constexpr int64_t kSqrtHalf = 0x3f3504f3;
  llvm::Value* offset = f.ir().CreateSub(f.bits_of(x), f.integer(kSqrtHalf));
  llvm::Value* exponent = f.to_float(f.ir().CreateAShr(offset, 23));
  exponent = f.ir().CreateFAdd(exponent, exponent_bias);
  llvm::Value* mantissa =
      f.ir().CreateAdd(f.ir().CreateAnd(offset, f.integer(0x7fffff)), f.integer(kSqrtHalf));
  llvm::Value* m = f.ir().CreateFSub(f.from_bits(mantissa), f.number(1.0));
  // (log(1+m) - m + m^2/2) / m^3; error 0.013
  llvm::Value* p =
      f.polynomial(m, {0x1.146e1ep-4, -0x1.de0006p-4, 0x1.e6c112p-4, -0x1.fc2926p-4, 0x1.233b9cp-3,
                       -0x1.555c42p-3, 0x1.99a476p-3, -0x1.000006p-2, 0x1.555548p-2});
  llvm::Value* square = f.ir().CreateFMul(m, m);
  llvm::Value* tail = f.ir().CreateFMul(f.ir().CreateFMul(square, m), p);
  tail = f.fma(exponent, f.number(kLn2Low), tail);
  tail = f.fma(square, f.number(-0.5), tail);
  return f.fma(exponent, f.number(kLn2High), f.ir().CreateFAdd(m, tail));
}

}  // namespace

llvm::Value* emit_exp(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  // Beyond these the result is 0 or infinity, which the two scalings give by themselves.
  return exp_in_range(f, f.at_most(89.0, f.at_least(-104.0, x))).rounded;
}

llvm::Value* emit_log(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  llvm::Value* is_tiny = c.ir.CreateFCmpOLT(x, f.number(0x1p-126));
  llvm::Value* scaled = c.ir.CreateSelect(is_tiny, c.ir.CreateFMul(x, f.number(0x1p23)), x);
  llvm::Value* bias = c.ir.CreateSelect(is_tiny, f.number(-23.0), f.number(0.0));
  llvm::Value* result = log_of_normal(f, scaled, bias);
  llvm::Value* zero = f.number(0.0);
  llvm::Value* infinity = ConstantFP::getInfinity(x->getType());
  // Infinity and NaN give themselves.
  result = c.ir.CreateSelect(c.ir.CreateFCmpULT(x, infinity), result, x);
  result = c.ir.CreateSelect(c.ir.CreateFCmpUNO(x, x), x, result);
  result = c.ir.CreateSelect(c.ir.CreateFCmpOLT(x, zero), ConstantFP::getNaN(x->getType()), result);
  return c.ir.CreateSelect(c.ir.CreateFCmpOEQ(x, zero), c.ir.CreateFNeg(infinity), result);
}

// t / (t + 2) with t = e^(2|x|) - 1, which keeps its digits near 0. What rounding took from t and
// from t + 2 is put back; 1 / (t + 2) is (1 - tanh) / 2 there.
llvm::Value* emit_tanh(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  // tanh(10) rounds to 1.
  llvm::Value* magnitude = f.at_most(10.0, f.magnitude(x));
  const auto [exponent, r] = reduce_by_ln2(f, c.ir.CreateFAdd(magnitude, magnitude));
  // (e^r - 1 - r) / r^2 in the weight of e^r - 1; error 0.23
  llvm::Value* p =
      f.polynomial(r, {0x1.6b9c68p-10, 0x1.12254ap-7, 0x1.5556f2p-5, 0x1.5554b4p-3, 0x1.fffffep-2});
  llvm::Value* square = c.ir.CreateFMul(r, r);
  llvm::Value* fraction = f.fma(square, p, r);
  llvm::Value* fraction_rest = f.fma(square, p, c.ir.CreateFSub(r, fraction));
  llvm::Value* scale = power_of_two(f, exponent);
  llvm::Value* scale_less_one = c.ir.CreateFSub(scale, f.number(1.0));
  llvm::Value* t = f.fma(scale, fraction, scale_less_one);
  llvm::Value* t_rest = f.fma(scale, fraction, c.ir.CreateFSub(scale_less_one, t));
  t_rest = f.fma(scale, fraction_rest, t_rest);
  llvm::Value* divisor = c.ir.CreateFAdd(t, f.number(2.0));
  llvm::Value* divisor_rest =
      c.ir.CreateFSub(f.at_most(2.0, t), c.ir.CreateFSub(divisor, f.at_least(2.0, t)));
  divisor_rest = c.ir.CreateFAdd(divisor_rest, t_rest);
  llvm::Value* quotient = c.ir.CreateFDiv(t, divisor);
  llvm::Value* lacking = f.fma(c.ir.CreateFNeg(quotient), divisor_rest, t_rest);
  llvm::Value* reciprocal = f.fma(quotient, f.number(-0.5), f.number(0.5));
  return f.with_sign_of(f.fma(lacking, reciprocal, quotient), x);
}

llvm::Value* emit_erf(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  llvm::Value* magnitude = f.magnitude(x);
  // erf(x)/x - 1 in x^2, |x| <= 0.97; error 0.015
  llvm::Value* square = c.ir.CreateFMul(x, x);
  llvm::Value* p =
      f.polynomial(square, {0x1.4faa52p-14, -0x1.a61842p-11, 0x1.544b0ap-8, -0x1.b80124p-6,
                            0x1.ce2d64p-4, -0x1.812740p-2, 0x1.06eba8p-3});
  llvm::Value* small = f.fma(p, x, x);
  // log(1 - erf(x))/x + 1, 0.9 <= x <= 3.95; error 0.013. From 3.92 on the result rounds to 1.
  llvm::Value* a = f.at_most(3.95, magnitude);
  llvm::Value* q = f.polynomial(a, {-0x1.6934b0p-17, 0x1.4d85dcp-12, -0x1.dade3ep-9, 0x1.84a1e6p-6,
                                    -0x1.b2f1d2p-4, -0x1.453682p-1, -0x1.0774eap-3});
  llvm::Value* complement = exp_in_range(f, f.fma(q, a, c.ir.CreateFNeg(a))).rounded;
  llvm::Value* large = f.with_sign_of(c.ir.CreateFSub(f.number(1.0), complement), x);
  return c.ir.CreateSelect(c.ir.CreateFCmpOLT(magnitude, f.number(0.95)), small, large);
}

// 1/(1+e) or e/(1+e) with e = e^-|x|: nothing overflows, and the small side keeps its digits and
// denormals. What rounding took from e and from 1 + e is put back; 1/(1+e) is the result itself, or
// 1 less it.
llvm::Value* emit_sigmoid(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  llvm::Value* negated = c.ir.CreateFNeg(f.magnitude(x));
  const auto [e, e_rest] = exp_in_range(f, f.at_least(-104.0, negated));
  llvm::Value* zero = f.number(0.0);
  llvm::Value* one = f.number(1.0);
  llvm::Value* is_negative = c.ir.CreateFCmpOLT(x, zero);
  llvm::Value* numerator = c.ir.CreateSelect(is_negative, e, one);
  llvm::Value* numerator_rest = c.ir.CreateSelect(is_negative, e_rest, zero);
  llvm::Value* divisor = c.ir.CreateFAdd(e, one);
  llvm::Value* divisor_rest = c.ir.CreateFSub(e, c.ir.CreateFSub(divisor, one));
  divisor_rest = c.ir.CreateFAdd(divisor_rest, e_rest);
  llvm::Value* quotient = c.ir.CreateFDiv(numerator, divisor);
  llvm::Value* lacking = f.fma(c.ir.CreateFNeg(quotient), divisor_rest, numerator_rest);
  llvm::Value* reciprocal =
      c.ir.CreateSelect(is_negative, c.ir.CreateFSub(one, quotient), quotient);
  return f.fma(lacking, reciprocal, quotient);
}

}  // namespace mlcc::codegen::cpu
