#include "codegen/cpu/float_math.h"

#include <llvm/IR/IntrinsicsX86.h>

#include <bit>

#include "codegen/cpu/lookup.h"

namespace mlcc::codegen::cpu {
namespace {

constexpr uint32_t kCurrentRounding = 4;

}  // namespace

FloatMath::FloatMath(const OpContext& c, llvm::Value* x)
    : c_(c), type_(x->getType()),
      bits_(like(x, c.ir.getIntNTy(x->getType()->getScalarSizeInBits()))) {}

llvm::Value* FloatMath::bits_of_number(double v) const {
  return integer(is_f64() ? std::bit_cast<int64_t>(v)
                          : std::bit_cast<int32_t>(static_cast<float>(v)));
}

llvm::Value* FloatMath::fma(llvm::Value* a, llvm::Value* b, llvm::Value* addend) const {
  if (is_f64() && !c_.has.fma) return add(mul(a, b), addend);
  return emit_fma(c_, a, b, addend);
}

llvm::Value* FloatMath::upper_half(llvm::Value* v) const {
  constexpr int64_t kDropped = (int64_t{1} << 27) - 1;
  return from_bits(c_.ir.CreateAnd(bits_of(v), integer(~kDropped)));
}

// Dekker, "A floating-point technique for extending the available precision", 1971.
llvm::Value* FloatMath::product_rest(llvm::Value* a, llvm::Value* b, llvm::Value* product) const {
  if (!is_f64() || c_.has.fma) return fma(a, b, neg(product));
  llvm::Value* a_high = upper_half(a);
  llvm::Value* b_high = upper_half(b);
  llvm::Value* a_low = sub(a, a_high);
  llvm::Value* b_low = sub(b, b_high);
  llvm::Value* rest = sub(mul(a_high, b_high), product);
  rest = add(add(rest, mul(a_high, b_low)), mul(a_low, b_high));
  return add(rest, mul(a_low, b_low));
}

llvm::Value* FloatMath::polynomial(llvm::Value* v, llvm::ArrayRef<double> coefficients,
                                   size_t num_last) const {
  llvm::SmallVector<llvm::Value*, 24> terms;
  for (double coefficient : coefficients) terms.push_back(number(coefficient));
  return polynomial(v, terms, num_last);
}

llvm::Value* FloatMath::polynomial(llvm::Value* v, llvm::ArrayRef<llvm::Value*> coefficients,
                                   size_t num_last) const {
  const auto one_by_one = [&](llvm::Value* sum, llvm::Value* of,
                              llvm::ArrayRef<llvm::Value*> lower) {
    for (llvm::Value* term : llvm::reverse(lower)) sum = fma(sum, of, term);
    return sum;
  };
  llvm::SmallVector<llvm::Value*, 24> terms(coefficients.drop_front(num_last));
  llvm::Value* power = v;
  constexpr size_t kFew = 3;
  while (terms.size() > kFew) {
    const size_t pairs = terms.size() / 2;
    for (size_t i = 0; i < pairs; ++i) terms[i] = fma(terms[2 * i + 1], power, terms[2 * i]);
    if (terms.size() % 2 != 0) terms[pairs] = terms.back();
    terms.resize(terms.size() - pairs);
    power = mul(power, power);
  }
  llvm::Value* highest = terms.pop_back_val();
  return one_by_one(one_by_one(highest, power, terms), v, coefficients.take_front(num_last));
}

llvm::Value* FloatMath::lookup(const MathTable& table, llvm::Value* index) const {
  return emit_lookup(c_, table, index);
}

llvm::Value* FloatMath::lookup(const MathTable64& table, llvm::Value* index) const {
  return emit_lookup(c_, table, index);
}

llvm::Value* FloatMath::per_register(
    llvm::ArrayRef<llvm::Value*> args,
    llvm::function_ref<llvm::Value*(llvm::ArrayRef<llvm::Value*>)> instruction) const {
  const unsigned lanes = lanes_of(args[0]);
  if (lanes <= lanes_of_register()) return instruction(args);
  const auto half = [&](unsigned first) {
    llvm::SmallVector<llvm::Value*, 3> parts;
    for (llvm::Value* arg : args) parts.push_back(lanes_from(c_, arg, first, lanes / 2));
    return per_register(parts, instruction);
  };
  llvm::Value* low = half(0);
  return join_lanes(c_, low, half(lanes / 2));
}

llvm::Value* FloatMath::rough_reciprocal(llvm::Value* v) const {
  return per_register(v, [&](llvm::ArrayRef<llvm::Value*> a) {
    return c_.ir.CreateIntrinsic(
        llvm::Intrinsic::x86_avx512_rcp14_ps_512, {},
        {a[0], llvm::Constant::getNullValue(a[0]->getType()), c_.ir.getInt16(0xffff)});
  });
}

llvm::Value* FloatMath::scaled_by_instruction(llvm::Value* v, llvm::Value* exponent,
                                              llvm::Value* is_kept) const {
  const auto id = is_f64() ? llvm::Intrinsic::x86_avx512_mask_scalef_pd_512
                           : llvm::Intrinsic::x86_avx512_mask_scalef_ps_512;
  return per_register({v, exponent, is_kept}, [&](llvm::ArrayRef<llvm::Value*> a) {
    llvm::Value* mask = c_.ir.CreateBitCast(a[2], c_.ir.getIntNTy(lanes_of_register()));
    return c_.ir.CreateIntrinsic(id, {},
                                 {a[0], a[1], llvm::Constant::getNullValue(a[0]->getType()), mask,
                                  c_.ir.getInt32(kCurrentRounding)});
  });
}

llvm::Value* FloatMath::power_of_two(llvm::Value* exponent) const {
  // The low bits of the sum are the biased exponent; what is above them is shifted out.
  llvm::Value* biased = add(exponent, number(integers() + static_cast<double>(exponent_bias())));
  return from_bits(c_.ir.CreateShl(bits_of(biased), static_cast<uint64_t>(mantissa_bits())));
}

llvm::Value* FloatMath::scaled(llvm::Value* v, llvm::Value* exponent, llvm::Value* is_kept) const {
  if (fills_register(v)) return scaled_by_instruction(v, exponent, is_kept);
  v = select(is_kept, v, number(0.0));
  // In two steps, since 2^exponent alone may leave the range where the result does not; only the
  // second one rounds.
  llvm::Value* shifted = fma(exponent, number(0.5), number(integers()));
  llvm::Value* half = sub(shifted, number(integers()));
  return mul(mul(v, power_of_two(half)), power_of_two(sub(exponent, half)));
}

llvm::Value* FloatMath::exponent_by_instruction(llvm::Value* v) const {
  const auto id = is_f64() ? llvm::Intrinsic::x86_avx512_mask_getexp_pd_512
                           : llvm::Intrinsic::x86_avx512_mask_getexp_ps_512;
  return per_register(v, [&](llvm::ArrayRef<llvm::Value*> a) {
    llvm::Value* all = llvm::ConstantInt::getAllOnesValue(c_.ir.getIntNTy(lanes_of_register()));
    return c_.ir.CreateIntrinsic(id, {},
                                 {a[0], llvm::Constant::getNullValue(a[0]->getType()), all,
                                  c_.ir.getInt32(kCurrentRounding)});
  });
}

llvm::Value* FloatMath::mantissa_by_instruction(llvm::Value* v) const {
  // Intel's manual, VGETMANTPS: the interval [0.75, 1.5), 1 for -0, NaN for negative numbers.
  constexpr uint32_t kFromThreeQuarters = 3, kNanOfNegative = 3 << 2;
  const auto id = is_f64() ? llvm::Intrinsic::x86_avx512_mask_getmant_pd_512
                           : llvm::Intrinsic::x86_avx512_mask_getmant_ps_512;
  return per_register(v, [&](llvm::ArrayRef<llvm::Value*> a) {
    llvm::Value* all = llvm::ConstantInt::getAllOnesValue(c_.ir.getIntNTy(lanes_of_register()));
    return c_.ir.CreateIntrinsic(id, {},
                                 {a[0], c_.ir.getInt32(kFromThreeQuarters | kNanOfNegative),
                                  llvm::Constant::getNullValue(a[0]->getType()), all,
                                  c_.ir.getInt32(kCurrentRounding)});
  });
}

FloatMath::Split FloatMath::split(llvm::Value* x) const {
  if (fills_register(x)) {
    llvm::Value* mantissa = mantissa_by_instruction(x);
    llvm::Value* exponent = sub(exponent_by_instruction(x), exponent_by_instruction(mantissa));
    return {mantissa, exponent, x, true};
  }
  llvm::Value* is_tiny = less(x, is_f64() ? 0x1p-1022 : 0x1p-126);
  llvm::Value* raised = mul(x, number(is_f64() ? 0x1p54 : 0x1p23));
  llvm::Value* lowered = number(is_f64() ? -54.0 : -23.0);
  const Split of_normal = split_normal(select(is_tiny, raised, x));
  llvm::Value* exponent = add(of_normal.exponent, select(is_tiny, lowered, number(0.0)));
  return {of_normal.mantissa, exponent, x, false};
}

FloatMath::Split FloatMath::split_normal(llvm::Value* x) const {
  // How far its bits are above those of 0.75, with the exponent biased so that it stays positive.
  const int64_t bias = exponent_bias();
  const auto shift = static_cast<uint64_t>(mantissa_bits());
  llvm::Value* offset =
      c_.ir.CreateAdd(bits_of(x), c_.ir.CreateSub(integer(bias << shift), bits_of_number(0.75)));
  llvm::Value* digits = c_.ir.CreateAnd(offset, integer((int64_t{1} << shift) - 1));
  llvm::Value* mantissa = from_bits(c_.ir.CreateAdd(digits, bits_of_number(0.75)));
  // An integer below 2^23 or 2^52 in the low bits of that power is a float that many above it.
  const double power = is_f64() ? 0x1p52 : 0x1p23;
  llvm::Value* above =
      from_bits(c_.ir.CreateOr(c_.ir.CreateLShr(offset, shift), bits_of_number(power)));
  return {mantissa, sub(above, number(power + static_cast<double>(bias))), x, true};
}

llvm::Value* FloatMath::finish_log(const Split& of, llvm::Value* log) const {
  if (of.is_complete) return log;
  // Infinity and NaN give themselves.
  llvm::Value* result = select(c_.ir.CreateFCmpULT(of.x, infinity()), log, of.x);
  result = select(c_.ir.CreateFCmpUNO(of.x, of.x), of.x, result);
  result = select(less(of.x, 0.0), nan(), result);
  return select(equal(of.x, 0.0), neg(infinity()), result);
}

}  // namespace mlcc::codegen::cpu
