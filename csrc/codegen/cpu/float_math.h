// Arithmetic on f32 or f64, on scalars and vectors alike, of which the functions are made.
#pragma once

#include "codegen/cpu/math_tables.h"
#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// Arithmetic on values of the type of `x`, and on integers of as many bits.
class FloatMath {
 public:
  FloatMath(const OpContext& c, llvm::Value* x);

  bool is_f64() const { return type_->getScalarType()->isDoubleTy(); }
  llvm::Value* number(double v) const { return llvm::ConstantFP::get(type_, v); }
  llvm::Value* infinity() const { return llvm::ConstantFP::getInfinity(type_); }
  llvm::Value* nan() const { return llvm::ConstantFP::getNaN(type_); }
  llvm::Value* integer(int64_t v) const {
    return llvm::ConstantInt::get(bits_, static_cast<uint64_t>(v));
  }
  // Bits of a number of this type, as an integer.
  llvm::Value* bits_of_number(double v) const;

  llvm::Value* add(llvm::Value* a, llvm::Value* b) const { return c_.ir.CreateFAdd(a, b); }
  llvm::Value* sub(llvm::Value* a, llvm::Value* b) const { return c_.ir.CreateFSub(a, b); }
  llvm::Value* mul(llvm::Value* a, llvm::Value* b) const { return c_.ir.CreateFMul(a, b); }
  llvm::Value* div(llvm::Value* a, llvm::Value* b) const { return c_.ir.CreateFDiv(a, b); }
  llvm::Value* neg(llvm::Value* a) const { return c_.ir.CreateFNeg(a); }
  llvm::Value* select(llvm::Value* condition, llvm::Value* a, llvm::Value* b) const {
    return c_.ir.CreateSelect(condition, a, b);
  }
  llvm::Value* less(llvm::Value* a, double bound) const {
    return c_.ir.CreateFCmpOLT(a, number(bound));
  }
  llvm::Value* greater(llvm::Value* a, double bound) const {
    return c_.ir.CreateFCmpOGT(a, number(bound));
  }
  llvm::Value* equal(llvm::Value* a, double v) const { return c_.ir.CreateFCmpOEQ(a, number(v)); }
  // a*b + addend, rounded once; of f64 without the instruction twice.
  llvm::Value* fma(llvm::Value* a, llvm::Value* b, llvm::Value* addend) const;
  // a*b - product, where `product` is the rounded one: exact but for overflow and denormals.
  llvm::Value* product_rest(llvm::Value* a, llvm::Value* b, llvm::Value* product) const;
  llvm::Value* sqrt(llvm::Value* v) const {
    return c_.ir.CreateUnaryIntrinsic(llvm::Intrinsic::sqrt, v);
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
  // The lowest power's coefficient first. Pairs of terms are summed side by side, then pairs of
  // these, and so on (Estrin's scheme): a long chain leaves much of the CPU idle. The first
  // `num_last` terms are added last, one by one: sums of the largest terms are rounded less often.
  llvm::Value* polynomial(llvm::Value* v, llvm::ArrayRef<double> coefficients,
                          size_t num_last = 0) const;
  llvm::Value* polynomial(llvm::Value* v, llvm::ArrayRef<llvm::Value*> coefficients,
                          size_t num_last = 0) const;
  llvm::Value* lookup(const MathTable& table, llvm::Value* index) const;
  llvm::Value* lookup(const MathTable64& table, llvm::Value* index) const;

  // Whether AVX-512 has instructions of its own for whole registers.
  bool fills_register(llvm::Value* v) const {
    return c_.has.avx512 && lanes_of(v) >= lanes_of_register();
  }
  // 1 / v to 14 bits, where v is a normal f32 whose reciprocal is one.
  llvm::Value* rough_reciprocal(llvm::Value* v) const;
  // v * 2^floor(exponent), and 0 where `is_kept` is false.
  llvm::Value* scaled_by_instruction(llvm::Value* v, llvm::Value* exponent,
                                     llvm::Value* is_kept) const;
  // v * 2^exponent, rounded once, and 0 where `is_kept` is false. The exponent is an integer below
  // 2^11 (f32: 2^8) as a float.
  llvm::Value* scaled(llvm::Value* v, llvm::Value* exponent, llvm::Value* is_kept) const;
  // 2^exponent for such an exponent, where that is a normal number.
  llvm::Value* power_of_two(llvm::Value* exponent) const;
  // Adding it rounds to an integer, which then stands in the low bits.
  double integers() const { return is_f64() ? 0x1.8p+52 : 0x1.8p+23; }
  llvm::Value* always() const {
    return llvm::Constant::getAllOnesValue(like(number(0), c_.ir.getInt1Ty()));
  }

  // x = mantissa * 2^exponent.
  struct Split {
    llvm::Value* mantissa;  // in [0.75, 1.5)
    llvm::Value* exponent;  // as a float
    llvm::Value* x;
    bool is_complete;  // whether the parts of any x make a logarithm what it should be
  };
  // With AVX-512 the parts are complete: those of 0, infinity, negative numbers and NaN too.
  Split split(llvm::Value* x) const;
  // Of a normal positive number; of others the parts mean nothing.
  Split split_normal(llvm::Value* x) const;
  // `log`, which was made of the parts, and what it should be where x is no finite positive number.
  llvm::Value* finish_log(const Split& of, llvm::Value* log) const;

  const OpContext& context() const { return c_; }
  llvm::IRBuilder<>& ir() const { return c_.ir; }

 private:
  unsigned lanes_of_register() const { return is_f64() ? 8 : 16; }
  int64_t exponent_bias() const { return is_f64() ? 1023 : 127; }
  int mantissa_bits() const { return is_f64() ? 52 : 23; }
  llvm::Value*
  per_register(llvm::ArrayRef<llvm::Value*> args,
               llvm::function_ref<llvm::Value*(llvm::ArrayRef<llvm::Value*>)> instruction) const;
  llvm::Value* exponent_by_instruction(llvm::Value* v) const;
  llvm::Value* mantissa_by_instruction(llvm::Value* v) const;
  // The upper half of the digits.
  llvm::Value* upper_half(llvm::Value* v) const;

  const OpContext& c_;
  llvm::Type* type_;
  llvm::Type* bits_;
};

}  // namespace mlcc::codegen::cpu
