#include "codegen/cpu/exponentials.h"

#include "codegen/cpu/math.h"
#include "codegen/cpu/outlined.h"

// e^x = 2^n e^r with |r| <= log(2)/2, in f64.

namespace mlcc::codegen::cpu {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr double kLn2 = 0x1.62e42fefa39efp-1;
// Its product with n is exact.
constexpr double kLn2High = 0x1.62e42fefa38p-1;
constexpr double kLn2Low = 0x1.ef35793c7673p-45;
// Beyond these e^x is infinite and 0; what is 0 is never computed, as in math.cpp.
constexpr double kMost = 710.0;
constexpr double kLeast = -745.13321910194122;

llvm::Value* fraction_of(const FloatMath& m, llvm::Value* r,
                         llvm::ArrayRef<double> coefficients = kExpF64) {
  return m.fma(m.mul(r, r), m.polynomial(r, coefficients), r);
}

// e^x - 1 for x between -40 and 710, but exact near 0 only up to 40.
llvm::Value* expm1_between(const FloatMath& m, const PowerF64& power) {
  llvm::Value* whole = m.power_of_two(power.exponent);
  return m.fma(whole, power.fraction, m.sub(whole, m.number(1.0)));
}

// The exponent and the fraction of e^x or 2^x, whose sum with 1 is to be scaled.
using SplitPower = PowerF64 (*)(const FloatMath& m, llvm::Value* x);

PowerF64 split_power_of_e(const FloatMath& m, llvm::Value* x) {
  return split_exp_f64(m, x, nullptr);
}

PowerF64 split_power_of_two(const FloatMath& m, llvm::Value* x) {
  llvm::Value* n = m.sub(m.add(x, m.number(m.integers())), m.number(m.integers()));
  return {n, fraction_of(m, m.mul(m.sub(x, n), m.number(kLn2)))};
}

// Where powers may be infinite, denormal or 0.
struct Range {
  double usual;        // up to this magnitude they are not
  double least, most;  // beyond they are 0 and infinite; 0 is never computed, as in math.cpp
};

llvm::Value* any_power(const FloatMath& m, llvm::Value* x, const Range& range, SplitPower split) {
  llvm::Value* is_kept = m.ir().CreateFCmpUGE(x, m.number(range.least));
  const PowerF64 power = split(m, m.at_most(range.most, m.at_least(range.least, x)));
  return m.scaled(m.add(power.fraction, m.number(1.0)), power.exponent, is_kept);
}

// Scaling is one instruction with AVX-512. Elsewhere what may leave the range is a function apart.
llvm::Value* power_of(const FloatMath& m, llvm::Value* x, const Range& range, SplitPower split,
                      const char* name) {
  if (m.fills_register(x)) return any_power(m, x, range, split);
  const OpContext& c = m.context();
  const PowerF64 power = split(m, x);
  llvm::Value* scale = m.power_of_two(power.exponent);
  llvm::Value* is_rare = c.ir.CreateFCmpUGE(m.magnitude(x), m.number(range.usual));
  const Parts result =
      emit_unless(c, is_rare, {m.fma(scale, power.fraction, scale)}, [&]() -> Parts {
        return {emit_outlined(c, name, x, x->getType(), [&](llvm::ArrayRef<llvm::Value*> args) {
          return any_power(m, args[0], range, split);
        })};
      });
  return result[0];
}

}  // namespace

PowerF64 split_exp_f64(const FloatMath& m, llvm::Value* x, llvm::Value* rest,
                       llvm::ArrayRef<double> coefficients) {
  llvm::Value* n =
      m.sub(m.fma(x, m.number(kLog2E), m.number(m.integers())), m.number(m.integers()));
  llvm::Value* r = m.fma(n, m.number(-kLn2High), x);
  r = m.fma(n, m.number(-kLn2Low), r);
  if (rest != nullptr) r = m.add(r, rest);
  return {n, fraction_of(m, r, coefficients)};
}

llvm::Value* exp_f64(const FloatMath& m, llvm::Value* x, llvm::Value* rest) {
  llvm::Value* is_kept = m.ir().CreateFCmpUGE(x, m.number(kLeast));
  const PowerF64 power = split_exp_f64(m, m.at_most(kMost, m.at_least(kLeast, x)), rest);
  return m.scaled(m.add(power.fraction, m.number(1.0)), power.exponent, is_kept);
}

llvm::Value* emit_exp_f64(const OpContext& c, llvm::Value* x) {
  return power_of(FloatMath(c, x), x, {708.0, kLeast, kMost}, split_power_of_e, "any_exp");
}

llvm::Value* emit_exp2_f64(const OpContext& c, llvm::Value* x) {
  // From -1075 on 2^x rounds to 0.
  constexpr double kLeastOfTwo = -0x1.0cbffffffffffp+10;
  return power_of(FloatMath(c, x), x, {1022.0, kLeastOfTwo, 1025.0}, split_power_of_two,
                  "any_exp2");
}

// 2^n (e^r - 1) + (2^n - 1).
llvm::Value* emit_expm1_f64(const OpContext& c, llvm::Value* x) {
  constexpr double kLarge = 40.0;  // from here on the 1 does not show
  const FloatMath m(c, x);
  llvm::Value* clamped = m.at_most(kMost, m.at_least(-kLarge, x));
  const PowerF64 power = split_exp_f64(m, clamped, nullptr);
  llvm::Value* large = m.scaled(m.add(power.fraction, m.number(1.0)), power.exponent, m.always());
  llvm::Value* result = m.select(m.greater(x, kLarge), large, expm1_between(m, power));
  return m.select(m.equal(x, 0.0), x, result);  // -0
}

// With t = e^-2|x| - 1 it is -t/(2 + t).
llvm::Value* emit_tanh_f64(const OpContext& c, llvm::Value* x) {
  constexpr double kOne = 20.0;  // from here on the result is 1
  const FloatMath m(c, x);
  llvm::Value* a = m.at_most(kOne, m.magnitude(x));
  llvm::Value* t = expm1_between(m, split_exp_f64(m, m.mul(a, m.number(-2.0)), nullptr));
  return m.with_sign_of(m.div(t, m.add(t, m.number(2.0))), x);
}

llvm::Value* half_exp_f64(const FloatMath& m, llvm::Value* x) {
  const PowerF64 power = split_exp_f64(m, m.at_most(kMost + 1, x), nullptr);
  llvm::Value* exponent = m.sub(power.exponent, m.number(1.0));
  return m.scaled(m.add(power.fraction, m.number(1.0)), exponent, m.always());
}

// As of f32 in math.cpp: nothing overflows, and the small side keeps its digits.
llvm::Value* emit_sigmoid_f64(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* e = emit_exp_f64(c, m.neg(m.magnitude(x)));
  llvm::Value* one = m.number(1.0);
  return m.div(m.select(m.less(x, 0.0), e, one), m.add(e, one));
}

}  // namespace mlcc::codegen::cpu
