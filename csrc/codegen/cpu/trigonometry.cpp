#include "codegen/cpu/angle.h"
#include "codegen/cpu/math.h"

namespace mlcc::codegen::cpu {
namespace {

unsigned bits_of_type(const FloatMath& m) { return m.is_f64() ? 64 : 32; }

llvm::Value* is_odd(const FloatMath& m, llvm::Value* quadrant) {
  return m.ir().CreateICmpSLT(m.ir().CreateShl(quadrant, bits_of_type(m) - 1), m.integer(0));
}

// Changes the sign where the quadrant's bit of that number is set.
llvm::Value* negated_by(const FloatMath& m, llvm::Value* v, llvm::Value* quadrant, unsigned bit) {
  llvm::Value* sign = m.ir().CreateShl(quadrant, bits_of_type(m) - 1 - bit);
  const uint64_t only = uint64_t{1} << (bits_of_type(m) - 1);
  if (bit != 0) sign = m.ir().CreateAnd(sign, m.integer(static_cast<int64_t>(only)));
  return m.from_bits(m.ir().CreateXor(m.bits_of(v), sign));
}

llvm::Value* sin_series(const FloatMath& m, llvm::Value* square) {
  return m.polynomial(square, m.is_f64() ? llvm::ArrayRef<double>(kSinF64)
                                         : llvm::ArrayRef<double>(kSinF32));
}

// (cos(r) - 1)/r^2
llvm::Value* cos_series(const FloatMath& m, llvm::Value* square) {
  llvm::Value* p = m.polynomial(square, m.is_f64() ? llvm::ArrayRef<double>(kCosF64)
                                                   : llvm::ArrayRef<double>(kCosF32));
  return m.fma(square, p, m.number(-0.5));
}

// The sine of x and so many quarter turns. sin(r) = r + r r^2 p(r^2) and cos(r) = 1 + 1 r^2 p(r^2):
// each lane chooses its coefficients.
llvm::Value* sin_of(const FloatMath& m, llvm::Value* x, int64_t turns) {
  const Angle angle = reduce_angle(m, x);
  llvm::Value* quadrant = angle.quadrant;
  if (turns != 0) quadrant = m.ir().CreateAdd(quadrant, m.integer(turns));
  llvm::Value* is_cos = is_odd(m, quadrant);
  llvm::Value* first = m.select(is_cos, m.number(1.0), angle.rest);
  const llvm::ArrayRef<double> of_sin =
      m.is_f64() ? llvm::ArrayRef<double>(kSinF64) : llvm::ArrayRef<double>(kSinF32);
  const llvm::ArrayRef<double> of_cos =
      m.is_f64() ? llvm::ArrayRef<double>(kCosF64) : llvm::ArrayRef<double>(kCosF32);
  llvm::SmallVector<llvm::Value*, 8> coefficients;
  for (size_t i = 0; i <= of_cos.size(); ++i)
    coefficients.push_back(m.select(is_cos, m.number(i == 0 ? -0.5 : of_cos[i - 1]),
                                    m.number(i < of_sin.size() ? of_sin[i] : 0.0)));
  llvm::Value* square = m.mul(angle.rest, angle.rest);
  llvm::Value* value = m.fma(m.mul(first, square), m.polynomial(square, coefficients), first);
  return negated_by(m, m.with_sign_of(value, first), quadrant, 1);  // of -0
}

// The bound in f32 leaves no room for what rounding takes from the sine, the cosine and the
// quotient: it is put back.
llvm::Value* tan_f32(const FloatMath& m, const Angle& angle) {
  llvm::Value* r = angle.rest;
  llvm::Value* one = m.number(1.0);
  llvm::Value* square = m.mul(r, r);
  llvm::Value* sin_rest = m.fma(m.mul(r, square), sin_series(m, square), angle.low);
  llvm::Value* sin = m.add(r, sin_rest);
  llvm::Value* sin_lacks = m.add(m.sub(r, sin), sin_rest);
  // 1 - r^2/2 and the smaller terms.
  llvm::Value* half_square = m.mul(square, m.number(0.5));
  llvm::Value* first = m.sub(one, half_square);
  llvm::Value* tail =
      m.fma(m.mul(square, square), m.polynomial(square, kCosF32), m.neg(m.mul(r, angle.low)));
  llvm::Value* cos = m.add(first, tail);
  llvm::Value* cos_lacks =
      m.add(m.sub(m.sub(one, first), half_square), m.add(m.sub(first, cos), tail));
  llvm::Value* swaps = is_odd(m, angle.quadrant);
  llvm::Value* numerator = m.select(swaps, cos, sin);
  llvm::Value* divisor = m.select(swaps, sin, cos);
  llvm::Value* reciprocal = m.div(one, divisor);
  llvm::Value* quotient = m.mul(numerator, reciprocal);
  llvm::Value* excess = m.product_rest(quotient, divisor, numerator);
  llvm::Value* lacking = m.sub(m.select(swaps, cos_lacks, sin_lacks), excess);
  lacking = m.fma(m.neg(quotient), m.select(swaps, sin_lacks, cos_lacks), lacking);
  return m.fma(lacking, reciprocal, quotient);
}

llvm::Value* tan_f64(const FloatMath& m, const Angle& angle) {
  llvm::Value* r = angle.rest;
  llvm::Value* square = m.mul(r, r);
  llvm::Value* sin = m.fma(m.mul(r, square), sin_series(m, square), r);
  llvm::Value* cos = m.fma(square, cos_series(m, square), m.number(1.0));
  llvm::Value* swaps = is_odd(m, angle.quadrant);
  return m.div(m.select(swaps, cos, sin), m.select(swaps, sin, cos));
}

}  // namespace

llvm::Value* emit_sin(const OpContext& c, llvm::Value* x) { return sin_of(FloatMath(c, x), x, 0); }

llvm::Value* emit_cos(const OpContext& c, llvm::Value* x) { return sin_of(FloatMath(c, x), x, 1); }

llvm::Value* emit_tan(const OpContext& c, llvm::Value* x) {
  const FloatMath m(c, x);
  const Angle angle = reduce_angle(m, x, /*is_precise=*/true);
  llvm::Value* value = m.is_f64() ? tan_f64(m, angle) : tan_f32(m, angle);
  return negated_by(m, m.with_sign_of(value, angle.rest), angle.quadrant, 0);
}

}  // namespace mlcc::codegen::cpu
