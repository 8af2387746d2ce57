#include "codegen/cpu/ops.h"

#include <llvm/IR/Intrinsics.h>

#include <numeric>

#include "codegen/cpu/functions.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;
using loop::ScalarOp;

llvm::Value* unary(const OpContext& c, llvm::Intrinsic::ID id, llvm::Value* value) {
  return c.ir.CreateUnaryIntrinsic(id, value);
}

unsigned bits_of(const llvm::Value* value) { return value->getType()->getScalarSizeInBits(); }

// ---- Integers
// --------------------------------------------------------------------------------------------------

// `b`, or 1 where the machine's division would trap.
llvm::Value* safe_divisor(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  if (auto* constant = llvm::dyn_cast<llvm::Constant>(b)) {
    const auto* splat = llvm::dyn_cast_or_null<ConstantInt>(
        constant->getType()->isVectorTy() ? constant->getSplatValue() : constant);
    if (splat && !splat->isZero() && !splat->isMinusOne()) return b;
  }
  llvm::Type* type = b->getType();
  llvm::Value* bad = c.ir.CreateICmpEQ(b, ConstantInt::get(type, 0));
  if (is_signed) {
    const llvm::APInt lowest = llvm::APInt::getSignedMinValue(bits_of(a));
    llvm::Value* overflow =
        c.ir.CreateAnd(c.ir.CreateICmpEQ(a, ConstantInt::get(type, lowest)),
                       c.ir.CreateICmpEQ(b, ConstantInt::getAllOnesValue(type)));
    bad = c.ir.CreateOr(bad, overflow);
  }
  return c.ir.CreateSelect(bad, ConstantInt::get(type, 1), b);
}

// The quotient towards zero of vectors: there is no vector instruction for integers, but a float
// division is exact enough: a/b is an integer or further than 1/|b| from one, relative to it more
// than 1/|a| > 2^-32.
llvm::Value* divide_by_floats(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  llvm::Type* scalar = bits_of(a) > 16 ? c.ir.getDoubleTy() : c.ir.getFloatTy();
  llvm::Type* type = like(a, scalar);
  auto convert = [&](llvm::Value* v) {
    return is_signed ? c.ir.CreateSIToFP(v, type) : c.ir.CreateUIToFP(v, type);
  };
  llvm::Value* quotient = c.ir.CreateFDiv(convert(a), convert(b));
  llvm::Value* integer = c.ir.CreateFPToSI(quotient, like(a, c.ir.getInt32Ty()));
  return c.ir.CreateTrunc(integer, a->getType());
}

llvm::Value* trunc_div(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  b = safe_divisor(c, is_signed, a, b);
  if (a->getType()->isVectorTy() && !llvm::isa<llvm::Constant>(b) && bits_of(a) <= 32)
    return divide_by_floats(c, is_signed, a, b);
  return is_signed ? c.ir.CreateSDiv(a, b) : c.ir.CreateUDiv(a, b);
}

llvm::Value* trunc_rem(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  b = safe_divisor(c, is_signed, a, b);
  if (a->getType()->isVectorTy() && !llvm::isa<llvm::Constant>(b) && bits_of(a) <= 32)
    return c.ir.CreateSub(a, c.ir.CreateMul(divide_by_floats(c, is_signed, a, b), b));
  return is_signed ? c.ir.CreateSRem(a, b) : c.ir.CreateURem(a, b);
}

// Where the remainder is not 0 and differs in sign from the divisor, the quotient was rounded up.
llvm::Value* was_rounded_up(const OpContext& c, llvm::Value* remainder, llvm::Value* b) {
  llvm::Value* zero = ConstantInt::get(b->getType(), 0);
  return c.ir.CreateAnd(c.ir.CreateICmpNE(remainder, zero),
                        c.ir.CreateICmpSLT(c.ir.CreateXor(remainder, b), zero));
}

llvm::Value* floor_div(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  llvm::Value* quotient = trunc_div(c, is_signed, a, b);
  if (!is_signed) return quotient;
  llvm::Value* up = was_rounded_up(c, trunc_rem(c, is_signed, a, b), b);
  return c.ir.CreateAdd(quotient, c.ir.CreateSExt(up, a->getType()));
}

llvm::Value* floor_mod(const OpContext& c, bool is_signed, llvm::Value* a, llvm::Value* b) {
  llvm::Value* remainder = trunc_rem(c, is_signed, a, b);
  if (!is_signed) return remainder;
  llvm::Value* up = was_rounded_up(c, remainder, b);
  return c.ir.CreateAdd(remainder, c.ir.CreateSelect(up, b, ConstantInt::get(b->getType(), 0)));
}

llvm::Value* shift(const OpContext& c, ScalarOp op, bool is_signed, llvm::Value* a,
                   llvm::Value* count) {
  llvm::Type* type = a->getType();
  llvm::Value* width = ConstantInt::get(type, bits_of(a));
  llvm::Value* is_valid = c.ir.CreateICmpULT(count, width);
  if (op == ScalarOp::kShr && is_signed) {
    llvm::Value* most = ConstantInt::get(type, bits_of(a) - 1);
    return c.ir.CreateAShr(a, c.ir.CreateSelect(is_valid, count, most));
  }
  const auto shifted_by = [&](llvm::Value* by) {
    return op == ScalarOp::kShl ? c.ir.CreateShl(a, by) : c.ir.CreateLShr(a, by);
  };
  const auto* known = llvm::dyn_cast<llvm::Constant>(is_valid);
  if (known != nullptr && known->isAllOnesValue()) return shifted_by(count);
  // The count is made valid as well: the unselected side of a select must not be poison either, it
  // may be hoisted.
  llvm::Value* zero = ConstantInt::get(type, 0);
  llvm::Value* valid = c.ir.CreateSelect(is_valid, count, zero);
  return c.ir.CreateSelect(is_valid, shifted_by(valid), zero);
}

llvm::Value* integer_extreme(const OpContext& c, ScalarOp op, bool is_signed, llvm::Value* a,
                             llvm::Value* b) {
  const bool is_min = op == ScalarOp::kMin;
  const llvm::Intrinsic::ID id = is_signed
                                     ? (is_min ? llvm::Intrinsic::smin : llvm::Intrinsic::smax)
                                     : (is_min ? llvm::Intrinsic::umin : llvm::Intrinsic::umax);
  return c.ir.CreateBinaryIntrinsic(id, a, b);
}

llvm::Value* integer_op(const OpContext& c, ScalarOp op, DType dtype,
                        llvm::ArrayRef<llvm::Value*> a) {
  const bool is_signed = is_signed_integer(dtype);
  using Predicate = llvm::CmpInst::Predicate;
  auto compare = [&](Predicate for_signed, Predicate for_unsigned) {
    return c.ir.CreateICmp(is_signed ? for_signed : for_unsigned, a[0], a[1]);
  };
  switch (op) {
  case ScalarOp::kAdd: return c.ir.CreateAdd(a[0], a[1]);
  case ScalarOp::kSub: return c.ir.CreateSub(a[0], a[1]);
  case ScalarOp::kMul: return c.ir.CreateMul(a[0], a[1]);
  case ScalarOp::kTruncDiv: return trunc_div(c, is_signed, a[0], a[1]);
  case ScalarOp::kRem: return trunc_rem(c, is_signed, a[0], a[1]);
  case ScalarOp::kFloorDiv: return floor_div(c, is_signed, a[0], a[1]);
  case ScalarOp::kMod: return floor_mod(c, is_signed, a[0], a[1]);
  case ScalarOp::kMin:
  case ScalarOp::kMax: return integer_extreme(c, op, is_signed, a[0], a[1]);
  case ScalarOp::kNeg: return c.ir.CreateNeg(a[0]);
  case ScalarOp::kAbs:
    return is_signed ? c.ir.CreateBinaryIntrinsic(llvm::Intrinsic::abs, a[0], c.ir.getFalse())
                     : a[0];
  case ScalarOp::kEq: return c.ir.CreateICmpEQ(a[0], a[1]);
  case ScalarOp::kNe: return c.ir.CreateICmpNE(a[0], a[1]);
  case ScalarOp::kLt: return compare(Predicate::ICMP_SLT, Predicate::ICMP_ULT);
  case ScalarOp::kLe: return compare(Predicate::ICMP_SLE, Predicate::ICMP_ULE);
  case ScalarOp::kGt: return compare(Predicate::ICMP_SGT, Predicate::ICMP_UGT);
  case ScalarOp::kGe: return compare(Predicate::ICMP_SGE, Predicate::ICMP_UGE);
  case ScalarOp::kAnd: return c.ir.CreateAnd(a[0], a[1]);
  case ScalarOp::kOr: return c.ir.CreateOr(a[0], a[1]);
  case ScalarOp::kXor: return c.ir.CreateXor(a[0], a[1]);
  case ScalarOp::kNot: return c.ir.CreateNot(a[0]);
  case ScalarOp::kShl:
  case ScalarOp::kShr:
  case ScalarOp::kLshr: return shift(c, op, is_signed, a[0], a[1]);
  case ScalarOp::kDiv:
  case ScalarOp::kFma:
  case ScalarOp::kSqrt:
  case ScalarOp::kFloor:
  case ScalarOp::kCeil:
  case ScalarOp::kTrunc:
  case ScalarOp::kRound:
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning) case ScalarOp::enumerator:
#include "loop/scalar_functions.def"
#undef SCALAR_FUNCTION
  case ScalarOp::kIsNan:
  case ScalarOp::kIsInf:
  case ScalarOp::kSignBit:
  case ScalarOp::kSelect: break;
  }
  MLCC_UNREACHABLE(loop::scalar_op_name(op), " on ", dtype_name(dtype));
}

// ---- Floats
// ----------------------------------------------------------------------------------------------------

bool is_number_constant(const llvm::Value* value) {
  const auto* constant = llvm::dyn_cast<llvm::Constant>(value);
  if (!constant) return false;
  const auto* number = llvm::dyn_cast_or_null<ConstantFP>(
      constant->getType()->isVectorTy() ? constant->getSplatValue() : constant);
  return number && !number->isNaN();
}

// x86's min and max give their second operand when either is NaN: one instruction where the first
// is known to be a number, three (compare, max, blend) otherwise. The blended NaN is a constant:
// with `a` in its place InstCombine would merge the two selects into one, which is no longer a max
// for the back end.
llvm::Value* float_extreme(const OpContext& c, ScalarOp op, llvm::Value* a, llvm::Value* b) {
  if (c.has.neon)  // has both as they are meant
    return c.ir.CreateBinaryIntrinsic(
        op == ScalarOp::kMin ? llvm::Intrinsic::minimum : llvm::Intrinsic::maximum, a, b);
  if (is_number_constant(b)) std::swap(a, b);
  llvm::Value* first = op == ScalarOp::kMin ? c.ir.CreateFCmpOLT(a, b) : c.ir.CreateFCmpOGT(a, b);
  llvm::Value* extreme = c.ir.CreateSelect(first, a, b);
  if (is_number_constant(a)) return extreme;
  return c.ir.CreateSelect(c.ir.CreateFCmpUNO(a, a), ConstantFP::getNaN(a->getType()), extreme);
}

llvm::Value* sign_bit(const OpContext& c, llvm::Value* value) {
  llvm::Type* bits = like(value, c.ir.getIntNTy(bits_of(value)));
  return c.ir.CreateICmpSLT(c.ir.CreateBitCast(value, bits), ConstantInt::get(bits, 0));
}

llvm::Value* is_infinite(const OpContext& c, llvm::Value* value) {
  return c.ir.CreateFCmpOEQ(unary(c, llvm::Intrinsic::fabs, value),
                            ConstantFP::getInfinity(value->getType()));
}

llvm::Value* float_op(const OpContext& c, ScalarOp op, llvm::ArrayRef<llvm::Value*> a) {
  switch (op) {
  case ScalarOp::kAdd: return c.ir.CreateFAdd(a[0], a[1]);
  case ScalarOp::kSub: return c.ir.CreateFSub(a[0], a[1]);
  case ScalarOp::kMul: return c.ir.CreateFMul(a[0], a[1]);
  case ScalarOp::kDiv: return c.ir.CreateFDiv(a[0], a[1]);
  case ScalarOp::kRem: return emit_float_rem(c, a[0], a[1]);
  case ScalarOp::kMin:
  case ScalarOp::kMax: return float_extreme(c, op, a[0], a[1]);
  case ScalarOp::kNeg: return c.ir.CreateFNeg(a[0]);
  case ScalarOp::kAbs: return unary(c, llvm::Intrinsic::fabs, a[0]);
  case ScalarOp::kFma: return emit_fma(c, a[0], a[1], a[2]);
  case ScalarOp::kEq: return c.ir.CreateFCmpOEQ(a[0], a[1]);
  case ScalarOp::kNe: return c.ir.CreateFCmpUNE(a[0], a[1]);
  case ScalarOp::kLt: return c.ir.CreateFCmpOLT(a[0], a[1]);
  case ScalarOp::kLe: return c.ir.CreateFCmpOLE(a[0], a[1]);
  case ScalarOp::kGt: return c.ir.CreateFCmpOGT(a[0], a[1]);
  case ScalarOp::kGe: return c.ir.CreateFCmpOGE(a[0], a[1]);
  case ScalarOp::kSqrt: return unary(c, llvm::Intrinsic::sqrt, a[0]);
  case ScalarOp::kFloor:
  case ScalarOp::kCeil:
  case ScalarOp::kTrunc:
  case ScalarOp::kRound: return emit_rounding(c, op, a[0]);
#define SCALAR_FUNCTION(enumerator, text, arity, value, meaning) case ScalarOp::enumerator:
#include "loop/scalar_functions.def"
#undef SCALAR_FUNCTION
    return emit_function(c, op, a);
  case ScalarOp::kIsNan: return c.ir.CreateFCmpUNO(a[0], a[0]);
  case ScalarOp::kIsInf: return is_infinite(c, a[0]);
  case ScalarOp::kSignBit: return sign_bit(c, a[0]);
  case ScalarOp::kTruncDiv:
  case ScalarOp::kFloorDiv:
  case ScalarOp::kMod:
  case ScalarOp::kAnd:
  case ScalarOp::kOr:
  case ScalarOp::kXor:
  case ScalarOp::kNot:
  case ScalarOp::kShl:
  case ScalarOp::kShr:
  case ScalarOp::kLshr:
  case ScalarOp::kSelect: break;
  }
  MLCC_UNREACHABLE(loop::scalar_op_name(op), " on a float");
}

}  // namespace

llvm::Type* register_type(llvm::LLVMContext& context, DType dtype) {
  MLCC_CHECK(!is_foreign(dtype), "a kernel holds a ", dtype_name(dtype));
  if (dtype == DType::kBool) return llvm::Type::getInt1Ty(context);
  if (dtype == DType::kF32) return llvm::Type::getFloatTy(context);
  if (dtype == DType::kF64) return llvm::Type::getDoubleTy(context);
  return llvm::Type::getIntNTy(context, static_cast<unsigned>(8 * dtype_size(dtype)));
}

llvm::Type* memory_type(llvm::LLVMContext& context, DType dtype) {
  return dtype == DType::kBool ? llvm::Type::getInt8Ty(context) : register_type(context, dtype);
}

llvm::Type* with_lanes(llvm::Type* scalar, unsigned lanes) {
  return lanes == 1 ? scalar : llvm::FixedVectorType::get(scalar, lanes);
}

llvm::Type* like(const llvm::Value* value, llvm::Type* scalar) {
  return with_lanes(scalar, lanes_of(value));
}

unsigned lanes_of(const llvm::Value* value) {
  const auto* vector = llvm::dyn_cast<llvm::FixedVectorType>(value->getType());
  return vector ? vector->getNumElements() : 1;
}

llvm::Value* lanes_from(const OpContext& c, llvm::Value* value, unsigned first, unsigned count) {
  llvm::SmallVector<int, 16> mask;
  for (unsigned i = 0; i < count; ++i)
    mask.push_back(static_cast<int>((first + i) % lanes_of(value)));
  return c.ir.CreateShuffleVector(value, mask);
}

llvm::Value* join_lanes(const OpContext& c, llvm::Value* low, llvm::Value* high) {
  llvm::SmallVector<int, 32> mask(size_t{2} * lanes_of(low));
  std::iota(mask.begin(), mask.end(), 0);
  return c.ir.CreateShuffleVector(low, high, mask);
}

llvm::Value* emit_op(const OpContext& c, ScalarOp op, DType dtype,
                     llvm::ArrayRef<llvm::Value*> args) {
  if (op == ScalarOp::kSelect) return c.ir.CreateSelect(args[0], args[1], args[2]);
  return is_float(dtype) ? float_op(c, op, args) : integer_op(c, op, dtype, args);
}

llvm::Value* emit_any(const OpContext& c, llvm::Value* mask) {
  const unsigned lanes = lanes_of(mask);
  if (lanes == 1) return mask;
  return c.ir.CreateIsNotNull(c.ir.CreateBitCast(mask, c.ir.getIntNTy(lanes)));
}

}  // namespace mlcc::codegen::cpu
