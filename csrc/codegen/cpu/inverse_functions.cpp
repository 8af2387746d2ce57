#include "codegen/cpu/float_math.h"
#include "codegen/cpu/math.h"

namespace mlcc::codegen::cpu {
namespace {

// The nearest number to a multiple of pi, and what that lacks.
struct Turn {
  double high, low;
};
Turn pi_times(const FloatMath& m, double factor) {
  constexpr Turn kF32 = {0x1.921fb6p+1, -0x1.777a5cp-24};
  constexpr Turn kF64 = {0x1.921fb54442d18p+1, 0x1.1a62633145c07p-53};
  const Turn& pi = m.is_f64() ? kF64 : kF32;
  return {pi.high * factor, pi.low * factor};  // factor: a power of two
}

llvm::Value* turn_less(const FloatMath& m, double factor, llvm::Value* angle) {
  const Turn turn = pi_times(m, factor);
  return m.sub(m.number(turn.high), m.sub(angle, m.number(turn.low)));
}

// v + v^3 p(v^2)
llvm::Value* odd(const FloatMath& m, llvm::Value* v, llvm::Value* square,
                 llvm::ArrayRef<double> of_f32, llvm::ArrayRef<double> of_f64) {
  llvm::Value* p = m.polynomial(square, m.is_f64() ? of_f64 : of_f32);
  return m.fma(m.mul(v, square), p, v);
}

// The angle of the point (large, small) in the first eighth of the plane: 0 <= small <= large. In
// f64 the upper half of it is turned back by pi/4.
llvm::Value* angle_of(const FloatMath& m, llvm::Value* small, llvm::Value* large) {
  llvm::Value* is_upper = nullptr;
  if (m.is_f64()) {
    constexpr double kTanOfEighth = 0.41421356237309503;
    is_upper = m.ir().CreateFCmpOGT(small, m.mul(large, m.number(kTanOfEighth)));
    llvm::Value* difference = m.sub(small, large);
    llvm::Value* sum = m.add(small, large);
    small = m.select(is_upper, difference, small);
    large = m.select(is_upper, sum, large);
  }
  llvm::Value* tangent = m.div(small, large);
  llvm::Value* angle = odd(m, tangent, m.mul(tangent, tangent), kAtanF32, kAtanF64);
  if (!m.is_f64()) return angle;
  const Turn quarter = pi_times(m, 0.25);
  llvm::Value* turned = m.add(m.number(quarter.high), m.add(angle, m.number(quarter.low)));
  return m.select(is_upper, turned, angle);
}

// asin(s) = s + rest, where s is |x|, and beyond 1/2 sqrt((1 - |x|)/2): asin(|x|) is pi/2 - 2
// asin(s) then.
struct Arc {
  llvm::Value* is_large;
  llvm::Value* s;
  llvm::Value* rest;
};
Arc arc_of(const FloatMath& m, llvm::Value* x) {
  llvm::Value* a = m.magnitude(x);
  llvm::Value* is_large = m.greater(a, 0.5);
  llvm::Value* half_rest = m.fma(a, m.number(-0.5), m.number(0.5));
  llvm::Value* square = m.select(is_large, half_rest, m.mul(a, a));
  llvm::Value* s = m.select(is_large, m.sqrt(half_rest), a);
  llvm::Value* p = m.polynomial(square, m.is_f64() ? llvm::ArrayRef<double>(kAsinF64)
                                                   : llvm::ArrayRef<double>(kAsinF32));
  return {is_large, s, m.mul(m.mul(s, square), p)};
}

// factor * pi - s - rest, where |s| is less than the first. What rounding takes from their
// difference is put back.
llvm::Value* turn_less_arc(const FloatMath& m, double factor, llvm::Value* s, llvm::Value* rest) {
  const Turn turn = pi_times(m, factor);
  llvm::Value* high = m.number(turn.high);
  llvm::Value* difference = m.sub(high, s);
  llvm::Value* taken = m.sub(m.sub(high, difference), s);
  return m.sub(difference, m.sub(rest, m.add(taken, m.number(turn.low))));
}

constexpr double kLn2 = 0x1.62e42fefa39efp-1;
// From here on x + sqrt(x^2 + 1) is 2x, and 1 + 2x too.
constexpr double kHuge = 0x1p60;

// log1p(v), and log(2x) where x is huge.
llvm::Value* log1p_or_twice(const FloatMath& m, llvm::Value* v, llvm::Value* x) {
  llvm::Value* is_huge = m.greater(x, kHuge);
  llvm::Value* log = emit_log1p(m.context(), m.select(is_huge, x, v));
  return m.select(is_huge, m.add(log, m.number(kLn2)), log);
}

}  // namespace

llvm::Value* emit_asin(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  const Arc arc = arc_of(m, x);
  llvm::Value* large = turn_less_arc(m, 0.5, m.add(arc.s, arc.s), m.add(arc.rest, arc.rest));
  return m.with_sign_of(m.select(arc.is_large, large, m.add(arc.s, arc.rest)), x);
}

llvm::Value* emit_acos(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  const Arc arc = arc_of(m, x);
  llvm::Value* twice = m.add(arc.s, arc.s);
  llvm::Value* twice_rest = m.add(arc.rest, arc.rest);
  llvm::Value* large =
      m.select(m.less(x, 0.0), turn_less_arc(m, 1.0, twice, twice_rest), m.add(twice, twice_rest));
  llvm::Value* small = turn_less_arc(m, 0.5, m.with_sign_of(arc.s, x), m.with_sign_of(arc.rest, x));
  return m.select(arc.is_large, large, small);
}

llvm::Value* emit_atan(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* a = m.magnitude(x);
  llvm::Value* one = m.number(1.0);
  llvm::Value* is_steep = m.greater(a, 1.0);
  llvm::Value* angle = angle_of(m, m.select(is_steep, one, a), m.select(is_steep, a, one));
  return m.with_sign_of(m.select(is_steep, turn_less(m, 0.5, angle), angle), x);
}

llvm::Value* emit_atan2(const OpContext& c, llvm::Value* y, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* height = m.magnitude(y);
  llvm::Value* width = m.magnitude(x);
  llvm::Value* is_steep = c.ir.CreateFCmpOGT(height, width);
  llvm::Value* longer = m.select(is_steep, height, width);
  // So that sums do not overflow, and that products of f64 are not denormal.
  llvm::Value* factor =
      m.select(m.greater(longer, m.is_f64() ? 0x1p1000 : 0x1p120), m.number(0.25), m.number(1.0));
  if (m.is_f64()) factor = m.select(m.less(longer, 0x1p-1000), m.number(0x1p100), factor);
  longer = m.mul(longer, factor);
  llvm::Value* shorter = m.mul(m.select(is_steep, width, height), factor);
  // Two infinities are as good as two equal numbers, and 0/0 as 0/1.
  llvm::Value* is_infinite = c.ir.CreateFCmpOEQ(shorter, m.infinity());
  shorter = m.select(is_infinite, m.number(1.0), shorter);
  llvm::Value* is_edge = c.ir.CreateOr(is_infinite, m.equal(longer, 0.0));
  longer = m.select(is_edge, m.number(1.0), longer);
  llvm::Value* angle = angle_of(m, shorter, longer);
  angle = m.select(is_steep, turn_less(m, 0.5, angle), angle);
  llvm::Value* is_left = c.ir.CreateICmpSLT(m.bits_of(x), m.integer(0));
  angle = m.select(is_left, turn_less(m, 1.0, angle), angle);
  // Where one of them is not a number the comparisons above may have lost it.
  angle = m.select(c.ir.CreateFCmpUNO(x, y), m.nan(), angle);
  return m.with_sign_of(angle, y);
}

// log(a + sqrt(a^2 + 1)), whose argument less 1 is a + a^2/(1 + sqrt(a^2 + 1)).
llvm::Value* emit_asinh(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* a = m.magnitude(x);
  llvm::Value* square = m.mul(a, a);
  llvm::Value* root = m.sqrt(m.add(square, m.number(1.0)));
  llvm::Value* v = m.add(a, m.div(square, m.add(root, m.number(1.0))));
  return m.with_sign_of(log1p_or_twice(m, v, a), x);
}

// log(x + sqrt(x^2 - 1)) with t = x - 1.
llvm::Value* emit_acosh(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* t = m.sub(x, m.number(1.0));
  llvm::Value* root = m.sqrt(m.mul(t, m.add(t, m.number(2.0))));
  llvm::Value* result = log1p_or_twice(m, m.add(t, root), x);
  return m.select(m.less(x, 1.0), m.nan(), result);
}

// log((1 + a)/(1 - a))/2. Its bound in f32 leaves no room for what rounding takes from the argument
// of the logarithm, v: that less v, over 1 + v = (1 + a)/(1 - a), is added.
llvm::Value* emit_atanh(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  llvm::Value* a = m.magnitude(x);
  llvm::Value* one = m.number(1.0);
  llvm::Value* twice = m.add(a, a);
  llvm::Value* divisor = m.sub(one, a);
  llvm::Value* v = m.div(twice, divisor);
  llvm::Value* log = emit_log1p(c, v);
  if (!m.is_f64()) {
    llvm::Value* divisor_lacks = m.sub(m.sub(one, divisor), a);
    llvm::Value* excess = m.fma(v, divisor_lacks, m.product_rest(v, divisor, twice));
    llvm::Value* lacking = m.div(excess, m.neg(m.add(a, one)));
    log = m.add(log, m.select(m.less(a, 1.0), lacking, m.number(0.0)));
  }
  return m.with_sign_of(m.mul(log, m.number(0.5)), x);
}

}  // namespace mlcc::codegen::cpu
