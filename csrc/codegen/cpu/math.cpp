#include "codegen/cpu/math.h"

#include "codegen/cpu/exponentials.h"
#include "codegen/cpu/float_math.h"

namespace mlcc::codegen::cpu {
namespace {

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

// `degree` of the polynomial: 3 errs by 0.15 of 2^-24 of e^x, 4 by 0.0007 of it.
Power split_exp(const FloatMath& f, llvm::Value* x, int degree) {
  llvm::Value* shifted = f.fma(x, f.number(kLog2E), f.number(kRounder));
  llvm::Value* steps = f.ir().CreateFSub(shifted, f.number(kRounder));
  llvm::Value* r = f.fma(steps, f.number(-kLn2High), x);
  r = f.fma(steps, f.number(-kLn2Low), r);
  llvm::Value* p = degree == 3 ? f.polynomial(r, {0.5, 0x1.555556p-3})
                               : f.polynomial(r, {0.5, 0x1.555556p-3, 0x1.555556p-5});
  llvm::Value* fraction = f.fma(f.ir().CreateFMul(r, r), p, r);
  llvm::Value* place = f.bits_of(shifted);
  return {f.always(), steps, place, f.lookup(kRootsOfTwo, place), fraction};
}

// The same for any x <= 104 or NaN. A number that rounds to 0 takes many CPUs far longer than any
// other, and is what masks make of exponentials: it is never computed.
Power split_exp_or_zero(const FloatMath& f, llvm::Value* x, int degree) {
  constexpr double kLeast = -104.0;  // below it e^x rounds to 0
  llvm::Value* is_kept = f.ir().CreateFCmpUGE(x, f.number(kLeast));
  Power power = split_exp(f, f.fills_register(x) ? x : f.at_least(kLeast, x), degree);
  power.is_kept = is_kept;
  return power;
}

// 2^x is infinite above, and rounds to 0 in the least of its sixteenths and below.
constexpr double kMostOfTwo = 129.0, kLeastOfTwo = -150.0;

// v * 2^floor(steps), rounded once.
llvm::Value* scale(const FloatMath& f, llvm::Value* v, const Power& power) {
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
llvm::Value* precise_exp(const FloatMath& f, llvm::Value* x) {
  const Power power = split_exp_or_zero(f, x, 3);
  llvm::Value* rest = f.fma(power.root, power.fraction, f.lookup(kRootsOfTwoRest, power.place));
  return scale(f, f.ir().CreateFAdd(power.root, rest), power);
}

// e^x / 2 for x >= 0 or NaN: infinite only where that is.
llvm::Value* half_exp(const FloatMath& f, llvm::Value* x) {
  if (f.is_f64()) return half_exp_f64(f, x);
  const Power power = split_exp(f, f.at_most(90.0, x), 3);
  llvm::Value* rest = f.fma(power.root, power.fraction, f.lookup(kRootsOfTwoRest, power.place));
  return scale(f, f.mul(f.add(power.root, rest), f.number(0.5)), power);
}

// x * polynomial(|x|) with the sign of x. `tables` holds a coefficient per power, the lowest first,
// for each piece of `step`. Behind the last piece the result is 1: the first one is taken again
// there, whose value is above 1.
llvm::Value* odd_function(const FloatMath& f, llvm::Value* x, double step,
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

}  // namespace

llvm::Value* emit_exp(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
  // Beyond 89 the result is infinity, which scaling gives by itself.
  const Power power = split_exp_or_zero(f, f.at_most(89.0, x), 3);
  return scale(f, f.fma(power.root, power.fraction, power.root), power);
}

// 2^k root - 1 is exact or nearly so, and what rounding takes from it is put back.
llvm::Value* emit_expm1(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
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

// The sixteenths come off exactly.
llvm::Value* emit_exp2(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
  x = f.at_most(kMostOfTwo, f.at_least(kLeastOfTwo, x));
  llvm::Value* steps = f.sub(f.add(x, f.number(kRounder)), f.number(kRounder));
  return exp2_of_steps(c, steps, f.sub(x, steps));
}

llvm::Value* exp2_of_steps(const OpContext& c, llvm::Value* steps, llvm::Value* rest) {
  const FloatMath f(c, steps);
  llvm::Value* is_kept = c.ir.CreateFCmpUGT(steps, f.number(kLeastOfTwo));
  llvm::Value* place = f.bits_of(f.add(steps, f.number(kRounder)));
  llvm::Value* root = f.lookup(kRootsOfTwo, place);
  llvm::Value* fraction = f.mul(rest, f.polynomial(rest, kExp2F32));
  const Power power{is_kept, steps, place, root, fraction};
  return scale(f, f.fma(root, fraction, root), power);
}

llvm::Value* emit_sinh(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
  llvm::Value* a = f.magnitude(x);
  llvm::Value* half = half_exp(f, a);
  llvm::Value* large = f.sub(half, f.div(f.number(0.25), half));
  llvm::Value* square = f.mul(a, a);
  const llvm::ArrayRef<double> coefficients =
      f.is_f64() ? llvm::ArrayRef<double>(kSinhF64) : llvm::ArrayRef<double>(kSinhF32);
  llvm::Value* small = f.fma(f.mul(a, square), f.polynomial(square, coefficients), a);
  return f.with_sign_of(f.select(f.less(a, 1.0), small, large), x);
}

llvm::Value* emit_cosh(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
  llvm::Value* half = half_exp(f, f.magnitude(x));
  return f.add(half, f.div(f.number(0.25), half));
}

llvm::Value* emit_tanh(const OpContext& c, llvm::Value* x) {
  return odd_function(FloatMath(c, x), x, /*step=*/0x1.2p-1, kTanh);
}

llvm::Value* emit_erf(const OpContext& c, llvm::Value* x) {
  return odd_function(FloatMath(c, x), x, /*step=*/0x1p-2, kErf);
}

// 1/(1+e) or e/(1+e) with e = e^-|x|: nothing overflows, and the small side keeps its digits and
// denormals. What rounding took from 1 + e and
// from the quotient is put back; 1/(1+e) is the result itself, or 1 less it.
llvm::Value* emit_sigmoid(const OpContext& c, llvm::Value* x) {
  const FloatMath f(c, x);
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
