#include <llvm/ADT/APSInt.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/MDBuilder.h>

#include "codegen/cpu/nibbles.h"
#include "codegen/cpu/ops.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;

llvm::Value* as_bits(const OpContext& c, llvm::Value* value) {
  const unsigned bits = value->getType()->getScalarSizeInBits();
  return c.ir.CreateBitCast(value, like(value, c.ir.getIntNTy(bits)));
}

llvm::Value* as_f32(const OpContext& c, llvm::Value* bits) {
  return c.ir.CreateBitCast(bits, like(bits, c.ir.getFloatTy()));
}

// ---- bf16
// ------------------------------------------------------------------------------------------------------

llvm::Value* bf16_to_f32(const OpContext& c, llvm::Value* value) {
  llvm::Value* wide = c.ir.CreateZExt(value, like(value, c.ir.getInt32Ty()));
  return as_f32(c, c.ir.CreateShl(wide, 16));
}

llvm::Value* f32_to_bf16_by_integers(const OpContext& c, llvm::Value* value) {
  llvm::Value* bits = as_bits(c, value);
  llvm::Type* type = bits->getType();
  llvm::Value* high = c.ir.CreateLShr(bits, 16);
  llvm::Value* is_odd = c.ir.CreateAnd(high, ConstantInt::get(type, 1));
  llvm::Value* nearest = c.ir.CreateLShr(
      c.ir.CreateAdd(bits, c.ir.CreateAdd(is_odd, ConstantInt::get(type, 0x7fff))), 16);
  llvm::Value* quiet = c.ir.CreateOr(high, ConstantInt::get(type, 0x40));
  llvm::Value* is_nan = c.ir.CreateFCmpUNO(value, value);
  return c.ir.CreateTrunc(c.ir.CreateSelect(is_nan, quiet, nearest),
                          like(value, c.ir.getInt16Ty()));
}

// The instruction of AVX-512 takes denormals for zeros: vectors with some go by integers, on a way
// of their own, for which all vectors are looked at together. Integers never are denormals.
Parts f32_to_bf16(const OpContext& c, const Parts& values, bool are_integers = false) {
  const auto all = [&](const auto& convert) {
    Parts results;
    for (llvm::Value* value : values) results.push_back(convert(value));
    return results;
  };
  const auto by_integers = [&] {
    return all([&](llvm::Value* value) { return f32_to_bf16_by_integers(c, value); });
  };
  if (c.has.neon_bf16)
    return all([&](llvm::Value* value) {
      return c.ir.CreateBitCast(c.ir.CreateFPTrunc(value, like(value, c.ir.getBFloatTy())),
                                like(value, c.ir.getInt16Ty()));
    });
  if (!c.has.avx512bf16 || lanes_of(values[0]) != 16) return by_integers();
  const auto by_instruction = [&] {
    return all([&](llvm::Value* value) {
      llvm::Value* rounded =
          c.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512bf16_cvtneps2bf16_512, {}, {value});
      return c.ir.CreateBitCast(rounded, like(value, c.ir.getInt16Ty()));
    });
  };
  if (are_integers) return by_instruction();
  constexpr uint32_t kDenormals = 0x20;  // a class of vfpclassps
  llvm::Value* are_denormal = nullptr;
  for (llvm::Value* value : values) {
    llvm::Value* own = c.ir.CreateIntrinsic(llvm::Intrinsic::x86_avx512_fpclass_ps_512, {},
                                            {value, c.ir.getInt32(kDenormals)});
    are_denormal = are_denormal == nullptr ? own : c.ir.CreateOr(are_denormal, own);
  }
  llvm::BasicBlock* before = c.ir.GetInsertBlock();
  llvm::Function* function = before->getParent();
  llvm::BasicBlock* rare = llvm::BasicBlock::Create(c.ir.getContext(), "denormals", function);
  llvm::BasicBlock* after = llvm::BasicBlock::Create(c.ir.getContext(), "rounded", function);
  const Parts usual = by_instruction();
  // How often each branch is taken, for LLVM, which then lays the rare one out of the way.
  static constexpr uint32_t kRareWeight = 1, kUsualWeight = 1000;
  llvm::MDNode* weights =
      llvm::MDBuilder(c.ir.getContext()).createBranchWeights(kRareWeight, kUsualWeight);
  c.ir.CreateCondBr(emit_any(c, are_denormal), rare, after, weights);
  c.ir.SetInsertPoint(rare);
  const Parts exact = by_integers();
  c.ir.CreateBr(after);
  c.ir.SetInsertPoint(after);
  Parts rounded;
  for (size_t i = 0; i < values.size(); ++i) {
    llvm::PHINode* either = c.ir.CreatePHI(exact[i]->getType(), 2);
    either->addIncoming(usual[i], before);
    either->addIncoming(exact[i], rare);
    rounded.push_back(either);
  }
  return rounded;
}

// ---- f16
// -------------------------------------------------------------------------------------------------------

// Shifted into place the bits are a float that is 2^112 too small; also for denormals.
llvm::Value* f16_to_f32_by_integers(const OpContext& c, llvm::Value* value) {
  llvm::Value* wide = c.ir.CreateZExt(value, like(value, c.ir.getInt32Ty()));
  llvm::Type* type = wide->getType();
  llvm::Value* magnitude = c.ir.CreateAnd(wide, ConstantInt::get(type, 0x7fff));
  llvm::Value* shifted = c.ir.CreateShl(magnitude, 13);
  llvm::Type* f32 = like(value, c.ir.getFloatTy());
  llvm::Value* finite =
      as_bits(c, c.ir.CreateFMul(as_f32(c, shifted), ConstantFP::get(f32, 0x1p112)));
  llvm::Value* is_nan = c.ir.CreateICmpUGT(magnitude, ConstantInt::get(type, 0x7c00));
  llvm::Value* quiet =
      c.ir.CreateSelect(is_nan, ConstantInt::get(type, 0x400000), ConstantInt::get(type, 0));
  llvm::Value* special =
      c.ir.CreateOr(c.ir.CreateOr(shifted, ConstantInt::get(type, 0x7f800000)), quiet);
  llvm::Value* is_special = c.ir.CreateICmpUGE(magnitude, ConstantInt::get(type, 0x7c00));
  llvm::Value* sign = c.ir.CreateShl(c.ir.CreateLShr(wide, 15), 31);
  return as_f32(c, c.ir.CreateOr(c.ir.CreateSelect(is_special, special, finite), sign));
}

llvm::Value* f32_to_f16_by_integers(const OpContext& c, llvm::Value* value) {
  llvm::Value* bits = as_bits(c, value);
  llvm::Type* type = bits->getType();
  auto integer = [&](uint64_t v) { return ConstantInt::get(type, v); };
  llvm::Value* magnitude = c.ir.CreateAnd(bits, integer(0x7fffffff));
  // Below f16's normal range: adding 0.5 rounds at 2^-24, the unit of f16's denormals.
  llvm::Value* added =
      c.ir.CreateFAdd(as_f32(c, magnitude), ConstantFP::get(value->getType(), 0.5));
  llvm::Value* denormal = c.ir.CreateSub(as_bits(c, added), integer(0x3f000000));
  llvm::Value* is_odd = c.ir.CreateAnd(c.ir.CreateLShr(magnitude, 13), integer(1));
  llvm::Value* rebiased = c.ir.CreateSub(magnitude, integer(112ULL << 23));
  llvm::Value* normal =
      c.ir.CreateLShr(c.ir.CreateAdd(c.ir.CreateAdd(rebiased, integer(0xfff)), is_odd), 13);
  llvm::Value* result =
      c.ir.CreateSelect(c.ir.CreateICmpULT(magnitude, integer(0x38800000)), denormal, normal);
  // 65520 is half way between the largest number and what would be the next.
  result = c.ir.CreateSelect(c.ir.CreateICmpUGE(magnitude, integer(0x477ff000)), integer(0x7c00),
                             result);
  llvm::Value* payload = c.ir.CreateAnd(c.ir.CreateLShr(magnitude, 13), integer(0x3ff));
  result = c.ir.CreateSelect(c.ir.CreateICmpUGT(magnitude, integer(0x7f800000)),
                             c.ir.CreateOr(payload, integer(0x7e00)), result);
  llvm::Value* sign = c.ir.CreateShl(c.ir.CreateLShr(bits, 31), 15);
  return c.ir.CreateTrunc(c.ir.CreateOr(result, sign), like(value, c.ir.getInt16Ty()));
}

llvm::Value* f16_to_f32(const OpContext& c, llvm::Value* value) {
  if (!c.has.f16_conversions) return f16_to_f32_by_integers(c, value);
  llvm::Value* half = c.ir.CreateBitCast(value, like(value, c.ir.getHalfTy()));
  return c.ir.CreateFPExt(half, like(value, c.ir.getFloatTy()));
}

llvm::Value* f32_to_f16(const OpContext& c, llvm::Value* value) {
  if (!c.has.f16_conversions) return f32_to_f16_by_integers(c, value);
  llvm::Value* half = c.ir.CreateFPTrunc(value, like(value, c.ir.getHalfTy()));
  return c.ir.CreateBitCast(half, like(value, c.ir.getInt16Ty()));
}

// ---- Between floats
// --------------------------------------------------------------------------------------------

llvm::Value* widen_to_f32(const OpContext& c, DType from, llvm::Value* value) {
  if (from == DType::kBF16) return bf16_to_f32(c, value);
  return from == DType::kF16 ? f16_to_f32(c, value) : value;
}

llvm::Value* any_to_f32(const OpContext& c, DType from, llvm::Value* value) {
  return from == DType::kF64 ? c.ir.CreateFPTrunc(value, like(value, c.ir.getFloatTy()))
                             : widen_to_f32(c, from, value);
}

// f64 becomes f16 and bf16 by way of f32, as eager has it.
llvm::Value* float_to_float(const OpContext& c, DType from, DType to, llvm::Value* value) {
  value = any_to_f32(c, from, value);
  if (to == DType::kBF16) return f32_to_bf16(c, {value})[0];
  if (to == DType::kF16) return f32_to_f16(c, value);
  return to == DType::kF64 ? c.ir.CreateFPExt(value, like(value, c.ir.getDoubleTy())) : value;
}

// ---- Between integers and floats
// -------------------------------------------------------------------------------

llvm::Value* integer_to_float(const OpContext& c, DType from, DType to, llvm::Value* value) {
  llvm::Type* type = like(value, to == DType::kF64 ? c.ir.getDoubleTy() : c.ir.getFloatTy());
  llvm::Value* converted =
      is_signed_integer(from) ? c.ir.CreateSIToFP(value, type) : c.ir.CreateUIToFP(value, type);
  if (to == DType::kBF16) return f32_to_bf16(c, {converted}, /*are_integers=*/true)[0];
  return to == DType::kF64 ? converted : float_to_float(c, DType::kF32, to, converted);
}

// A number as the machine converts it, the least integer out of range, or null.
llvm::Constant* convert_constant(llvm::Value* value, llvm::Type* type) {
  const auto* constant = llvm::dyn_cast<llvm::Constant>(value);
  if (constant != nullptr && value->getType()->isVectorTy()) constant = constant->getSplatValue();
  const auto* number = llvm::dyn_cast_or_null<llvm::ConstantFP>(constant);
  if (number == nullptr) return nullptr;
  llvm::APSInt integer(type->getScalarSizeInBits(), /*isUnsigned=*/false);
  bool is_exact = false;
  const auto status =
      number->getValueAPF().convertToInteger(integer, llvm::APFloat::rmTowardZero, &is_exact);
  if (status == llvm::APFloat::opInvalidOp)
    return ConstantInt::get(type, llvm::APInt::getSignedMinValue(integer.getBitWidth()));
  return ConstantInt::get(type, integer);
}

// LLVM's conversion is poison out of range, which it makes 0 of constants; frozen it is what the
// machine gives. Narrow integers are cut from an i32, which is what C code does on this machine.
llvm::Value* float_to_integer(const OpContext& c, DType from, DType to, llvm::Value* value) {
  if (from != DType::kF64) value = widen_to_f32(c, from, value);
  const bool is_wide = to == DType::kI64;
  llvm::Type* type = like(value, is_wide ? c.ir.getInt64Ty() : c.ir.getInt32Ty());
  llvm::Value* integer = convert_constant(value, type);
  if (integer == nullptr) integer = c.ir.CreateFreeze(c.ir.CreateFPToSI(value, type));
  return c.ir.CreateTrunc(integer, like(value, register_type(c.ir.getContext(), to)));
}

llvm::Value* to_bool(const OpContext& c, DType from, llvm::Value* value) {
  llvm::Constant* zero = llvm::Constant::getNullValue(value->getType());
  if (from == DType::kF32 || from == DType::kF64) return c.ir.CreateFCmpUNE(value, zero);
  if (is_float(from)) value = c.ir.CreateAnd(value, ConstantInt::get(value->getType(), 0x7fff));
  return c.ir.CreateICmpNE(value, zero);
}

}  // namespace

llvm::Value* emit_cast(const OpContext& c, DType from, DType to, llvm::Value* value) {
  if (from == to) return value;
  if (to == DType::kBool) return to_bool(c, from, value);
  if (is_float(from))
    return is_float(to) ? float_to_float(c, from, to, value) : float_to_integer(c, from, to, value);
  if (to == DType::kF32)
    if (llvm::Value* nibbles = nibbles_to_f32(c, from, value)) return nibbles;
  if (is_float(to)) return integer_to_float(c, from, to, value);
  llvm::Type* type = like(value, register_type(c.ir.getContext(), to));
  return c.ir.CreateIntCast(value, type, is_signed_integer(from));
}

Parts emit_casts(const OpContext& c, DType from, DType to, const Parts& values) {
  const bool is_rounded = to == DType::kBF16 && is_float(from) && from != to;
  Parts results;
  for (llvm::Value* value : values)
    results.push_back(is_rounded ? any_to_f32(c, from, value) : emit_cast(c, from, to, value));
  return is_rounded ? f32_to_bf16(c, results) : results;
}

}  // namespace mlcc::codegen::cpu
