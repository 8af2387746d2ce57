#include "codegen/cpu/exponentials.h"
#include "codegen/cpu/math.h"
#include "codegen/cpu/outlined.h"

namespace mlcc::codegen::cpu {
namespace {

// erfc(a) for a >= 3/4 or NaN, as e^(-a^2) times what varies slowly; that is a polynomial in
// (a - c)/(a + c), after Shepherd and Laframboise, "Chebyshev approximation of (1 + 2x) exp(x^2)
// erfc x", 1981.
llvm::Value* large_erfc(const FloatMath& m, llvm::Value* a) {
  constexpr double kCenter = 3.625;
  constexpr double kZero = 27.3;  // from here on the result is 0
  a = m.at_most(kZero, a);
  llvm::Value* sum = m.add(a, m.number(kCenter));
  llvm::Value* sum_rest = m.add(m.sub(m.at_least(kCenter, a), sum), m.at_most(kCenter, a));
  llvm::Value* reciprocal = m.div(m.number(1.0), sum);
  llvm::Value* excess = m.product_rest(reciprocal, sum, m.number(1.0));
  excess = m.fma(reciprocal, sum_rest, excess);
  llvm::Value* part = m.mul(m.add(a, a), reciprocal);
  llvm::Value* t = m.sub(m.fma(m.add(a, a), reciprocal, m.number(-1.0)), m.mul(part, excess));
  llvm::Value* p = m.polynomial(t, kErfcF64, /*num_last=*/3);
  llvm::Value* slow = m.mul(p, reciprocal);
  // What rounding took from the quotient is put back.
  llvm::Value* lacking = m.fma(m.neg(slow), excess, m.product_rest(p, reciprocal, slow));
  llvm::Value* square = m.mul(a, a);
  llvm::Value* rest = m.product_rest(a, a, square);
  llvm::Value* is_kept = m.ir().CreateFCmpULT(a, m.number(kZero));
  const PowerF64 power = split_exp_f64(m, m.neg(square), m.neg(rest));
  llvm::Value* result = m.add(slow, m.fma(slow, power.fraction, lacking));
  return m.scaled(result, power.exponent, is_kept);
}

}  // namespace

// In f64, as large_erfc to some 28 bits: nothing needs to be put back.
llvm::Value* emit_erfc(const OpContext& c, llvm::Value* x) {
  constexpr double kCenter = 3.25;
  constexpr double kZero = 10.1;  // from here on the result is 0
  const FloatMath f(c, x);
  llvm::Value* magnitude = f.at_most(kZero, f.magnitude(x));
  llvm::Value* a = c.ir.CreateFPExt(magnitude, like(x, c.ir.getDoubleTy()));
  const FloatMath m(c, a);
  llvm::Value* reciprocal = m.div(m.number(1.0), m.add(a, m.number(kCenter)));
  llvm::Value* t = m.fma(reciprocal, m.number(-2 * kCenter), m.number(1.0));
  llvm::Value* slow = m.mul(m.polynomial(t, kShortErfcF64), reciprocal);
  const PowerF64 power = split_exp_f64(m, m.neg(m.mul(a, a)), nullptr, kShortExpF64);
  llvm::Value* scaled = m.mul(slow, m.power_of_two(power.exponent));
  llvm::Value* result = m.fma(scaled, power.fraction, scaled);
  result = m.select(f.less(x, 0.0), m.sub(m.number(2.0), result), result);
  return c.ir.CreateFPTrunc(result, x->getType());
}

llvm::Value* emit_erfc_f64(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* a = m.magnitude(x);
  // 1 - a - a p
  llvm::Value* small =
      m.fma(m.neg(a), m.polynomial(m.mul(a, a), kErfTinyF64), m.sub(m.number(1.0), a));
  llvm::Value* result = m.select(m.less(a, 0.75), small, large_erfc(m, a));
  return m.select(m.less(x, 0.0), m.sub(m.number(2.0), result), result);
}

// A polynomial up to 3, and another one behind a branch.
llvm::Value* emit_erf_f64(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* a = m.at_most(6.0, m.magnitude(x));  // beyond, the result is 1
  llvm::Value* is_large = c.ir.CreateFCmpOGE(a, m.number(3.0));
  // Both in what goes from -1 to 1.
  llvm::Value* t = m.fma(m.mul(a, a), m.number(2.0 / 9), m.number(-1.0));
  llvm::Value* small = m.mul(a, m.polynomial(t, kErfSmallF64, /*num_last=*/2));
  const Parts result = emit_unless(c, is_large, {small}, [&]() -> Parts {
    llvm::Value* u = m.fma(a, m.number(1 / 1.5), m.number(-3.0));
    llvm::Value* large = m.at_most(1.0, m.polynomial(u, kErfLargeF64));
    return {m.select(is_large, large, small)};
  });
  return m.with_sign_of(result[0], x);
}

}  // namespace mlcc::codegen::cpu
