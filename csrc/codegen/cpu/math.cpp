#include "codegen/cpu/math.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <initializer_list>

#include "codegen/cpu/lookup.h"

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
  llvm::Value* lookup(const MathTable& table, llvm::Value* index) const {
    return emit_lookup(c_, table, index);
  }
  // Whether AVX-512 has instructions of its own for whole registers.
  bool fills_register(llvm::Value* v) const { return c_.has.avx512 && lanes_of(v) >= kLanes; }
  // 1 / v to 14 bits, where v is a normal number whose reciprocal is one.
  llvm::Value* rough_reciprocal(llvm::Value* v) const;
  // v * 2^floor(exponent), and 0 where `is_kept` is false.
  llvm::Value* scaled_by_instruction(llvm::Value* v, llvm::Value* exponent,
                                     llvm::Value* is_kept) const;
  llvm::Value* always() const {
    return llvm::Constant::getAllOnesValue(like(number(0), c_.ir.getInt1Ty()));
  }
  llvm::IRBuilder<>& ir() const { return c_.ir; }

 private:
  static constexpr unsigned kLanes = 16;

  const OpContext& c_;
  llvm::Type* type_;
  llvm::Type* bits_;
};

llvm::Value* Float32::scaled_by_instruction(llvm::Value* v, llvm::Value* exponent,
                                            llvm::Value* is_kept) const {
  const unsigned lanes = lanes_of(v);
  if (lanes > kLanes) {
    const auto half = [&](unsigned first) {
      return scaled_by_instruction(lanes_from(c_, v, first, lanes / 2),
                                   lanes_from(c_, exponent, first, lanes / 2),
                                   lanes_from(c_, is_kept, first, lanes / 2));
    };
    llvm::Value* low = half(0);
    return join_lanes(c_, low, half(lanes / 2));
  }
  constexpr uint32_t kCurrentRounding = 4;
  return c_.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_mask_scalef_ps_512, {},
                               {v, exponent, llvm::Constant::getNullValue(v->getType()),
                                c_.ir.CreateBitCast(is_kept, c_.ir.getInt16Ty()),
                                c_.ir.getInt32(kCurrentRounding)});
}

llvm::Value* Float32::rough_reciprocal(llvm::Value* v) const {
  const unsigned lanes = lanes_of(v);
  if (lanes > kLanes) {
    llvm::Value* low = rough_reciprocal(lanes_from(c_, v, 0, lanes / 2));
    return join_lanes(c_, low, rough_reciprocal(lanes_from(c_, v, lanes / 2, lanes / 2)));
  }
  return c_.ir.CreateIntrinsic(
      llvm::Intrinsic::x86_avx512_rcp14_ps_512, {},
      {v, llvm::Constant::getNullValue(v->getType()), c_.ir.getInt16(0xffff)});
}

// A number of steps of 1/16 in units of 1: adding it rounds to one, which then stands in the low
// bits, the sixteenths in the lowest four.
constexpr double kRounder = 0x1.8p+19;
constexpr int64_t kRounderBits = 0x49400000;
constexpr double kLog2E = 0x1.715476p+0;
// ln 2 in two parts; the first has 9 trailing zeros, so that its product with a small integer is
// exact even without fma.
constexpr double kLn2High = 0x1.62e400p-1;
constexpr double kLn2Low = 0x1.7f7d1cp-20;

// e^x = 2^exponent * root * (1 + fraction), |fraction| <= 0.0219; |x| <= 104 or NaN.
struct Power {
  llvm::Value* is_kept;  // e^x is 0 where it is false
  llvm::Value* steps;    // f32: the exponent with its sixteenths, of which `root` is made
  llvm::Value* place;    // i32: in its low four bits which root
  llvm::Value* root;     // 2^(i/16)
  llvm::Value* fraction;
};

// `degree` of the polynomial: 3 errs by 0.15 of 2^-24 of e^x, 4 by 0.0007.
Power split_exp(const Float32& f, llvm::Value* x, int degree) {
  llvm::Value* shifted = f.fma(x, f.number(kLog2E), f.number(kRounder));
  llvm::Value* steps = f.ir().CreateFSub(shifted, f.number(kRounder));
  llvm::Value* r = f.fma(steps, f.number(-kLn2High), x);
  r = f.fma(steps, f.number(-kLn2Low), r);
  llvm::Value* p = degree == 3 ? f.polynomial(r, {0x1.555556p-3, 0.5})
                               : f.polynomial(r, {0x1.555556p-5, 0x1.555556p-3, 0.5});
  llvm::Value* fraction = f.fma(f.ir().CreateFMul(r, r), p, r);
  llvm::Value* place = f.bits_of(shifted);
  return {f.always(), steps, place, f.lookup(kRootsOfTwo, place), fraction};
}

// The same for any x <= 104 or NaN. A number that rounds to 0 takes many CPUs far longer than any
// other, and is what masks make of exponentials: it is never computed.
Power split_exp_or_zero(const Float32& f, llvm::Value* x, int degree) {
  constexpr double kLeast = -104.0;  // below it e^x rounds to 0
  llvm::Value* is_kept = f.ir().CreateFCmpUGE(x, f.number(kLeast));
  Power power = split_exp(f, f.fills_register(x) ? x : f.at_least(kLeast, x), degree);
  power.is_kept = is_kept;
  return power;
}

// v * 2^floor(steps), rounded once.
llvm::Value* scale(const Float32& f, llvm::Value* v, const Power& power) {
  if (f.fills_register(v)) return f.scaled_by_instruction(v, power.steps, power.is_kept);
  v = f.ir().CreateSelect(power.is_kept, v, f.number(0.0));
  // In two steps, since 2^exponent alone may leave the range where the result does not; only the
  // second one rounds.
  llvm::Value* exponent =
      f.ir().CreateAShr(f.ir().CreateSub(power.place, f.integer(kRounderBits)), 4);
  llvm::Value* half = f.ir().CreateAShr(exponent, 1);
  const auto power_of_two = [&](llvm::Value* n) {
    return f.from_bits(f.ir().CreateShl(f.ir().CreateAdd(n, f.integer(127)), 23));
  };
  llvm::Value* first = f.ir().CreateFMul(v, power_of_two(half));
  return f.ir().CreateFMul(first, power_of_two(f.ir().CreateSub(exponent, half)));
}

// e^x for x <= 89 or NaN. Its error is half an ULP and the little that the fraction's rounding
// adds.
llvm::Value* precise_exp(const Float32& f, llvm::Value* x) {
  const Power power = split_exp_or_zero(f, x, 3);
  llvm::Value* rest = f.fma(power.root, power.fraction, f.lookup(kRootsOfTwoRest, power.place));
  return scale(f, f.ir().CreateFAdd(power.root, rest), power);
}

// x * polynomial(|x|) with the sign of x. `tables` holds a coefficient per power, the lowest first,
// for each piece of `step`. Behind the last piece the result is 1: the first one is taken again
// there, whose value is above 1.
llvm::Value* odd_function(const Float32& f, llvm::Value* x, double step,
                          llvm::ArrayRef<MathTable> tables) {
  constexpr double kPieces = std::tuple_size_v<MathTable>;
  llvm::Value* a = f.at_most(kPieces * step, f.magnitude(x));
  constexpr double kToInteger = 0x1.8p+23;
  llvm::Value* shifted = f.fma(a, f.number(1 / step), f.number(kToInteger));
  llvm::Value* center = f.ir().CreateFSub(shifted, f.number(kToInteger));
  llvm::Value* r = f.fma(center, f.number(-step), a);
  llvm::Value* piece = f.bits_of(shifted);
  llvm::Value* sum = f.lookup(tables.back(), piece);
  for (const MathTable& table : llvm::reverse(tables.drop_front().drop_back()))
    sum = f.fma(sum, r, f.lookup(table, piece));
  // a * first + (a * r) * sum rounds once at full size.
  llvm::Value* result =
      f.fma(a, f.lookup(tables.front(), piece), f.ir().CreateFMul(f.ir().CreateFMul(a, r), sum));
  return f.with_sign_of(f.at_most(1.0, result), x);
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
  // Beyond 89 the result is infinity, which scaling gives by itself.
  const Power power = split_exp_or_zero(f, f.at_most(89.0, x), 3);
  return scale(f, f.fma(power.root, power.fraction, power.root), power);
}

// 2^k root - 1 is exact or nearly so, and what rounding takes from it is put back.
llvm::Value* emit_expm1(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  const Power power = split_exp(f, f.at_most(89.0, f.at_least(-20.0, x)), 4);
  llvm::Value* rest = f.fma(power.root, power.fraction, f.lookup(kRootsOfTwoRest, power.place));
  llvm::Value* one = f.number(1.0);
  llvm::Value* root = scale(f, power.root, power);
  llvm::Value* less_one = c.ir.CreateFSub(root, one);
  llvm::Value* taken = c.ir.CreateFSub(root, c.ir.CreateFAdd(less_one, one));
  llvm::Value* result = c.ir.CreateFAdd(less_one, c.ir.CreateFAdd(taken, scale(f, rest, power)));
  // From here on the 1 does not show, and 2^k root may be infinite where the result is not.
  constexpr double kLarge = 20.0;
  llvm::Value* large = scale(f, c.ir.CreateFAdd(power.root, rest), power);
  result = c.ir.CreateSelect(c.ir.CreateFCmpOGT(x, f.number(kLarge)), large, result);
  // -0 keeps its sign.
  return c.ir.CreateSelect(c.ir.CreateFCmpOEQ(x, f.number(0.0)), x, result);
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

llvm::Value* emit_tanh(const OpContext& c, llvm::Value* x) {
  return odd_function(Float32(c, x), x, /*step=*/0x1.2p-1, kTanh);
}

llvm::Value* emit_erf(const OpContext& c, llvm::Value* x) {
  return odd_function(Float32(c, x), x, /*step=*/0x1p-2, kErf);
}

// 1/(1+e) or e/(1+e) with e = e^-|x|: nothing overflows, and the small side keeps its digits and
// denormals. What rounding took from 1 + e and
// from the quotient is put back; 1/(1+e) is the result itself, or 1 less it.
llvm::Value* emit_sigmoid(const OpContext& c, llvm::Value* x) {
  const Float32 f(c, x);
  llvm::Value* one = f.number(1.0);
  llvm::Value* e = precise_exp(f, c.ir.CreateFNeg(f.magnitude(x)));
  llvm::Value* is_negative = c.ir.CreateFCmpOLT(x, f.number(0.0));
  llvm::Value* divisor = c.ir.CreateFAdd(e, one);
  // Of less than this the square, which is what it would put back, may be denormal: that takes
  // time.
  constexpr double kShows = 0x1p-60;
  llvm::Value* rest =
      c.ir.CreateSelect(c.ir.CreateFCmpUGE(e, f.number(kShows)),
                        c.ir.CreateFSub(e, c.ir.CreateFSub(divisor, one)), f.number(0.0));
  llvm::Value* numerator = c.ir.CreateSelect(is_negative, e, one);
  // What is put back is so exact that the quotient need not be.
  const bool is_rough = f.fills_register(x);
  llvm::Value* reciprocal = is_rough ? f.rough_reciprocal(divisor) : nullptr;
  llvm::Value* quotient =
      is_rough ? c.ir.CreateFMul(numerator, reciprocal) : c.ir.CreateFDiv(numerator, divisor);
  llvm::Value* negated = c.ir.CreateFNeg(quotient);
  llvm::Value* lacking = f.fma(negated, rest, f.fma(negated, divisor, numerator));
  if (!is_rough)
    reciprocal = c.ir.CreateSelect(is_negative, c.ir.CreateFSub(one, quotient), quotient);
  return f.fma(lacking, reciprocal, quotient);
}

}  // namespace mlcc::codegen::cpu
