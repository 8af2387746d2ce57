#include "codegen/cpu/exponentials.h"
#include "codegen/cpu/math.h"

namespace mlcc::codegen::cpu {
namespace {

constexpr double kLn2High = 0x1.62e42fefa38p-1;
constexpr double kLn2Low = 0x1.ef35793c7673p-45;

// Whether |y| is an integer.
llvm::Value* is_integer(const FloatMath& m, llvm::Value* magnitude) {
  const double whole = m.is_f64() ? 0x1p52 : 0x1p23;  // from here on every number is one
  llvm::Value* rounded = m.sub(m.add(magnitude, m.number(whole)), m.number(whole));
  return m.ir().CreateOr(m.ir().CreateFCmpOGE(magnitude, m.number(whole)),
                         m.ir().CreateFCmpOEQ(rounded, magnitude));
}

// x^y of C's Annex F, where `power` is |x|^y for finite y and for |x| neither 0 nor infinite.
llvm::Value* with_special_values(const FloatMath& m, llvm::Value* x, llvm::Value* y,
                                 llvm::Value* power) {
  llvm::IRBuilder<>& ir = m.ir();
  llvm::Value* a = m.magnitude(x);
  llvm::Value* b = m.magnitude(y);
  llvm::Value* zero = m.number(0.0);
  llvm::Value* is_negative = m.less(y, 0.0);
  // 0, infinity, and any number to an infinite power.
  llvm::Value* is_extreme = ir.CreateOr(m.equal(a, 0.0), ir.CreateFCmpOEQ(a, m.infinity()));
  llvm::Value* is_infinite = ir.CreateFCmpOEQ(b, m.infinity());
  llvm::Value* shrinks = ir.CreateXor(m.less(a, 1.0), is_negative);
  llvm::Value* extreme = m.select(shrinks, zero, m.infinity());
  llvm::Value* result = m.select(ir.CreateOr(is_extreme, is_infinite), extreme, power);
  result = m.select(ir.CreateAnd(is_infinite, m.equal(a, 1.0)), m.number(1.0), result);
  // Negative numbers.
  llvm::Value* whole = is_integer(m, b);
  llvm::Value* is_odd = ir.CreateAnd(whole, ir.CreateNot(is_integer(m, m.mul(b, m.number(0.5)))));
  result = m.select(is_odd, m.with_sign_of(result, x), result);
  llvm::Value* has_none =
      ir.CreateAnd(ir.CreateAnd(m.less(x, 0.0), ir.CreateNot(is_extreme)), ir.CreateNot(whole));
  result = m.select(has_none, m.nan(), result);
  result = m.select(ir.CreateFCmpUNO(x, y), m.nan(), result);
  return m.select(ir.CreateOr(m.equal(x, 1.0), m.equal(y, 0.0)), m.number(1.0), result);
}

// Which sixteenth of the bits from 0.75 to 1.5 a mantissa lies in.
llvm::Value* piece_of(const FloatMath& m, llvm::Value* mantissa) {
  const uint64_t shift = m.is_f64() ? 52 - 4 : 23 - 4;
  llvm::Value* offset = m.ir().CreateSub(m.bits_of(mantissa), m.bits_of_number(0.75));
  return m.ir().CreateLShr(offset, shift);
}

// y log(|x|) in two parts, to some 62 bits of the logarithm, after Tang, "Table-driven
// implementation of the logarithm function", 1990.
struct TwoParts {
  llvm::Value *high, *low;
};
TwoParts log_times(const FloatMath& m, llvm::Value* x, llvm::Value* y) {
  const FloatMath::Split parts = m.split(m.magnitude(x));
  llvm::Value* piece = piece_of(m, parts.mantissa);
  llvm::Value* inverse = m.lookup(kPowInverse, piece);
  // The mantissa over the middle of its piece is 1 + r + r_rest.
  llvm::Value* product = m.mul(parts.mantissa, inverse);
  llvm::Value* r_rest = m.product_rest(parts.mantissa, inverse, product);
  llvm::Value* r = m.sub(product, m.number(1.0));
  // r - r^2/2 + r^3 p(r), and its derivative times r_rest.
  llvm::Value* half = m.mul(r, m.number(0.5));
  llvm::Value* square = m.mul(half, r);
  llvm::Value* square_rest = m.product_rest(half, r, square);
  llvm::Value* low = m.mul(m.mul(m.mul(r, r), r), m.polynomial(r, kPowLogF64));
  low = m.add(low, m.sub(m.fma(m.neg(r), r_rest, r_rest), square_rest));
  low = m.add(low, m.fma(parts.exponent, m.number(kLn2Low), m.lookup(kPowLogRest, piece)));
  // Exact, and 0 or larger than what is added.
  llvm::Value* first = m.fma(parts.exponent, m.number(kLn2High), m.lookup(kPowLog, piece));
  llvm::Value* second = m.add(first, r);
  low = m.add(low, m.add(m.sub(first, second), r));
  llvm::Value* third = m.sub(second, square);
  low = m.add(low, m.sub(m.sub(second, third), square));
  llvm::Value* log = m.add(third, low);
  llvm::Value* log_rest = m.sub(low, m.sub(log, third));
  llvm::Value* high = m.mul(y, log);
  llvm::Value* rest = m.fma(y, log_rest, m.product_rest(y, log, high));
  return {high, rest};
}

llvm::Value* pow_f64(const FloatMath& m, llvm::Value* x, llvm::Value* y) {
  const TwoParts power = log_times(m, x, y);
  // Beyond, the result is 0 or infinite, and what the product lacks may be no number.
  llvm::Value* is_usual = m.less(m.magnitude(power.high), 800.0);
  llvm::Value* rest = m.select(is_usual, power.low, m.number(0.0));
  return with_special_values(m, x, y, exp_f64(m, power.high, rest));
}

// In f64 the logarithm is exact enough.
llvm::Value* pow_f32(const FloatMath& m, llvm::Value* x, llvm::Value* y) {
  const OpContext& c = m.context();
  const FloatMath::Split parts = m.split(m.magnitude(x));
  llvm::Type* f64 = like(x, c.ir.getDoubleTy());
  const auto widen = [&](llvm::Value* v) { return c.ir.CreateFPExt(v, f64); };
  llvm::Value* mantissa = widen(parts.mantissa);
  const FloatMath d(c, mantissa);
  llvm::Value* piece = c.ir.CreateZExt(piece_of(m, parts.mantissa), like(x, c.ir.getInt64Ty()));
  llvm::Value* r = d.fma(mantissa, d.lookup(kPowInverse, piece), d.number(-1.0));
  llvm::Value* whole = d.add(widen(parts.exponent), d.lookup(kPowLog2, piece));
  llvm::Value* log = d.fma(r, d.polynomial(r, kLog2F64), whole);
  llvm::Value* power = d.at_most(140.0, d.at_least(-160.0, d.mul(widen(y), log)));
  // In steps of a sixteenth.
  constexpr double kRounder = 0x1.8p+48;
  llvm::Value* steps = d.sub(d.add(power, d.number(kRounder)), d.number(kRounder));
  llvm::Value* rest = c.ir.CreateFPTrunc(d.sub(power, steps), x->getType());
  steps = c.ir.CreateFPTrunc(steps, x->getType());
  return with_special_values(m, x, y, exp2_of_steps(c, steps, rest));
}

}  // namespace

llvm::Value* emit_pow(const OpContext& c, llvm::Value* x, llvm::Value* y) {
  const FloatMath m(c, x);
  return m.is_f64() ? pow_f64(m, x, y) : pow_f32(m, x, y);
}

// Both divided by a power of two near the larger one.
llvm::Value* emit_hypot(const OpContext& c, llvm::Value* x, llvm::Value* y) {
  const FloatMath m(c, x);
  llvm::Value* a = m.magnitude(x);
  llvm::Value* b = m.magnitude(y);
  llvm::Value* is_first = c.ir.CreateFCmpOGT(a, b);
  llvm::Value* large = m.select(is_first, a, b);
  llvm::Value* small = m.select(is_first, b, a);
  const int64_t bias = m.is_f64() ? 1023 : 127;
  const uint64_t shift = m.is_f64() ? 52 : 23;
  const auto field = [&](int64_t exponent) { return m.integer(exponent << shift); };
  // Exponents for which both the power and its inverse are normal numbers.
  llvm::Value* exponent = c.ir.CreateAnd(m.bits_of(large), field(2 * bias + 1));
  const auto bounded = [&](llvm::Intrinsic::ID id, int64_t bound) {
    exponent = c.ir.CreateBinaryIntrinsic(id, exponent, field(bound));
  };
  bounded(llvm::Intrinsic::umax, 1);
  bounded(llvm::Intrinsic::umin, 2 * bias - 1);
  llvm::Value* factor = m.from_bits(c.ir.CreateSub(field(2 * bias), exponent));
  large = m.mul(large, factor);
  small = m.mul(small, factor);
  llvm::Value* root = m.sqrt(m.fma(small, small, m.mul(large, large)));
  llvm::Value* result = m.mul(root, m.from_bits(exponent));
  // Infinity even where the other one is not a number.
  llvm::Value* is_infinite =
      c.ir.CreateOr(c.ir.CreateFCmpOEQ(a, m.infinity()), c.ir.CreateFCmpOEQ(b, m.infinity()));
  return m.select(is_infinite, m.infinity(), result);
}

}  // namespace mlcc::codegen::cpu
