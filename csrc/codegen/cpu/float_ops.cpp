#include "codegen/cpu/ops.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

using llvm::ConstantFP;
using llvm::ConstantInt;
using loop::ScalarOp;

llvm::Value* unary(const OpContext& c, llvm::Intrinsic::ID id, llvm::Value* value) {
  return c.ir.CreateUnaryIntrinsic(id, value);
}

llvm::Value* with_sign_of(const OpContext& c, llvm::Value* value, llvm::Value* sign) {
  return c.ir.CreateBinaryIntrinsic(llvm::Intrinsic::copysign, value, sign);
}

llvm::Type* bits_type(const OpContext& c, const llvm::Value* value) {
  return like(value, c.ir.getIntNTy(value->getType()->getScalarSizeInBits()));
}

// f32 fma on a CPU without the instruction. The product is exact in f64; the sum is rounded to odd
// there (its last bit is set where it is not exact), after which rounding to f32 is the same as
// rounding once.
llvm::Value* fma_through_f64(const OpContext& c, llvm::Value* a, llvm::Value* b,
                             llvm::Value* addend) {
  llvm::Type* f64 = like(a, c.ir.getDoubleTy());
  auto widen = [&](llvm::Value* v) { return c.ir.CreateFPExt(v, f64); };
  llvm::Value* product = c.ir.CreateFMul(widen(a), widen(b));
  llvm::Value* wide = widen(addend);
  llvm::Value* sum = c.ir.CreateFAdd(product, wide);
  // The exact error of the sum (Knuth's two-sum).
  llvm::Value* shadow = c.ir.CreateFSub(sum, product);
  llvm::Value* error = c.ir.CreateFAdd(c.ir.CreateFSub(product, c.ir.CreateFSub(sum, shadow)),
                                       c.ir.CreateFSub(wide, shadow));
  llvm::Type* i64 = bits_type(c, sum);
  llvm::Value* bits = c.ir.CreateBitCast(sum, i64);
  llvm::Value* zero = ConstantFP::get(f64, 0.0);
  llvm::Value* one = ConstantInt::get(i64, 1);
  llvm::Value* is_inexact = c.ir.CreateFCmpONE(error, zero);
  // Towards zero first: the error's sign differs from the sum's where the sum was rounded away.
  llvm::Value* is_beyond =
      c.ir.CreateXor(c.ir.CreateFCmpOLT(error, zero), c.ir.CreateFCmpOLT(sum, zero));
  llvm::Value* cut = c.ir.CreateSelect(is_beyond, c.ir.CreateSub(bits, one), bits);
  bits = c.ir.CreateSelect(is_inexact, c.ir.CreateOr(cut, one), bits);
  return c.ir.CreateFPTrunc(c.ir.CreateBitCast(bits, f64), a->getType());
}

// Rounding without SSE4.1, where LLVM would call the C library. From 2^23 (2^52) on every number is
// an integer.
llvm::Value* round_by_conversion(const OpContext& c, ScalarOp op, llvm::Value* x) {
  const bool is_double = x->getType()->getScalarType()->isDoubleTy();
  llvm::Value* limit = ConstantFP::get(x->getType(), is_double ? 0x1p52 : 0x1p23);
  llvm::Value* is_small = c.ir.CreateFCmpOLT(unary(c, llvm::Intrinsic::fabs, x), limit);
  llvm::Value* zero = ConstantFP::get(x->getType(), 0.0);
  llvm::Value* one = ConstantFP::get(x->getType(), 1.0);
  llvm::Value* rounded = nullptr;
  if (op == ScalarOp::kRound) {
    llvm::Value* shift = with_sign_of(c, limit, x);
    rounded = c.ir.CreateFSub(c.ir.CreateFAdd(x, shift), shift);
  } else {
    llvm::Value* convertible = c.ir.CreateSelect(is_small, x, zero);
    rounded = c.ir.CreateSIToFP(c.ir.CreateFPToSI(convertible, bits_type(c, x)), x->getType());
    if (op == ScalarOp::kFloor)
      rounded =
          c.ir.CreateFSub(rounded, c.ir.CreateSelect(c.ir.CreateFCmpOGT(rounded, x), one, zero));
    if (op == ScalarOp::kCeil)
      rounded =
          c.ir.CreateFAdd(rounded, c.ir.CreateSelect(c.ir.CreateFCmpOLT(rounded, x), one, zero));
  }
  return c.ir.CreateSelect(is_small, with_sign_of(c, rounded, x), x);
}

llvm::Intrinsic::ID rounding_intrinsic(ScalarOp op) {
  if (op == ScalarOp::kFloor) return llvm::Intrinsic::floor;
  if (op == ScalarOp::kCeil) return llvm::Intrinsic::ceil;
  if (op == ScalarOp::kTrunc) return llvm::Intrinsic::trunc;
  MLCC_CHECK(op == ScalarOp::kRound, loop::scalar_op_name(op), " is no rounding");
  return llvm::Intrinsic::roundeven;
}

// The next smaller number of a positive one.
llvm::Value* next_below(const OpContext& c, llvm::Value* value) {
  llvm::Type* bits = bits_type(c, value);
  llvm::Value* less = c.ir.CreateSub(c.ir.CreateBitCast(value, bits), ConstantInt::get(bits, 1));
  return c.ir.CreateBitCast(less, value->getType());
}

// b, or where a/b overflows a multiple of b by a power of two for which it does not. The power
// stays below a/b, so that a step always takes something off: a/b is at least 2^128 where it
// overflows (f64: 2^1024), and below 2^277 (2^2098).
llvm::Value* rem_divisor(const OpContext& c, llvm::Value* a, llvm::Value* b) {
  const bool is_double = a->getType()->getScalarType()->isDoubleTy();
  llvm::Value* factor = ConstantFP::get(a->getType(), is_double ? 0x1p500 : 0x1p60);
  llvm::Value* divisor = b;
  for (int i = 0; i < 2; ++i) {
    llvm::Value* is_huge =
        c.ir.CreateFCmpOEQ(c.ir.CreateFDiv(a, divisor), ConstantFP::getInfinity(a->getType()));
    llvm::Value* multiple = c.ir.CreateFMul(c.ir.CreateFMul(divisor, factor), factor);
    divisor = c.ir.CreateSelect(is_huge, multiple, divisor);
  }
  return divisor;
}

// One step of a mod b, 0 < b <= a: a - q*b with an integer q near a/b, so that 0 <= result, and < b
// once a/b is below 2^24 (2^53). With q next to a/b the difference is a float, so that fma computes
// it exactly.
llvm::Value* rem_step(const OpContext& c, llvm::Value* a, llvm::Value* b) {
  llvm::Value* one = ConstantFP::get(a->getType(), 1.0);
  llvm::Value* divisor = rem_divisor(c, a, b);
  llvm::Value* q = emit_rounding(c, ScalarOp::kTrunc, c.ir.CreateFDiv(a, divisor));
  llvm::Value* rest = emit_fma(c, c.ir.CreateFNeg(q), divisor, a);
  // The quotient may have been rounded up: take the integer below, which beyond 2^24 is the next
  // float.
  llvm::Value* minus_one = c.ir.CreateFSub(q, one);
  llvm::Value* below = next_below(c, q);
  llvm::Value* smaller = c.ir.CreateSelect(c.ir.CreateFCmpOLT(minus_one, below), minus_one, below);
  llvm::Value* corrected = emit_fma(c, c.ir.CreateFNeg(smaller), divisor, a);
  llvm::Value* is_negative = c.ir.CreateFCmpOLT(rest, ConstantFP::get(a->getType(), 0.0));
  return c.ir.CreateSelect(is_negative, corrected, rest);
}

}  // namespace

llvm::Value* emit_fma(const OpContext& c, llvm::Value* a, llvm::Value* b, llvm::Value* addend) {
  if (c.has.fma) return c.ir.CreateIntrinsic(llvm::Intrinsic::fma, {a->getType()}, {a, b, addend});
  MLCC_CHECK(a->getType()->getScalarType()->isFloatTy(), "fma of f64 without the instruction");
  return fma_through_f64(c, a, b, addend);
}

llvm::Value* emit_rounding(const OpContext& c, ScalarOp op, llvm::Value* value) {
  if (!c.has.rounding) return round_by_conversion(c, op, value);
  return unary(c, rounding_intrinsic(op), value);
}

// while (some a >= b) a = rem_step(a, b), on magnitudes. One round in the usual case, at most 12
// (f64: 41).
llvm::Value* emit_float_rem(const OpContext& c, llvm::Value* a, llvm::Value* b) {
  llvm::Type* type = a->getType();
  llvm::Value* zero = ConstantFP::get(type, 0.0);
  llvm::Value* infinity = ConstantFP::getInfinity(type);
  llvm::Value* dividend = unary(c, llvm::Intrinsic::fabs, a);
  llvm::Value* divisor = unary(c, llvm::Intrinsic::fabs, b);
  // fmod(inf, b), fmod(a, 0) and NaN give NaN; such lanes start done.
  llvm::Value* is_valid =
      c.ir.CreateAnd(c.ir.CreateFCmpOLT(dividend, infinity), c.ir.CreateFCmpOGT(divisor, zero));
  llvm::Value* start = c.ir.CreateSelect(is_valid, dividend, zero);
  divisor = c.ir.CreateSelect(is_valid, divisor, infinity);

  llvm::Function* function = c.ir.GetInsertBlock()->getParent();
  auto block = [&](const char* name) {
    return llvm::BasicBlock::Create(c.ir.getContext(), name, function);
  };
  llvm::BasicBlock* before = c.ir.GetInsertBlock();
  llvm::BasicBlock* round = block("rem");
  llvm::BasicBlock* after = block("rem.done");
  c.ir.CreateCondBr(emit_any(c, c.ir.CreateFCmpOGE(start, divisor)), round, after);
  c.ir.SetInsertPoint(round);
  llvm::PHINode* rest = c.ir.CreatePHI(type, 2);
  llvm::Value* is_open = c.ir.CreateFCmpOGE(rest, divisor);
  llvm::Value* next = c.ir.CreateSelect(is_open, rem_step(c, rest, divisor), rest);
  rest->addIncoming(start, before);
  rest->addIncoming(next, c.ir.GetInsertBlock());
  llvm::BasicBlock* latch = c.ir.GetInsertBlock();
  c.ir.CreateCondBr(emit_any(c, c.ir.CreateFCmpOGE(next, divisor)), round, after);
  c.ir.SetInsertPoint(after);
  llvm::PHINode* result = c.ir.CreatePHI(type, 2);
  result->addIncoming(start, before);
  result->addIncoming(next, latch);
  return c.ir.CreateSelect(is_valid, with_sign_of(c, result, a), ConstantFP::getNaN(type));
}

}  // namespace mlcc::codegen::cpu
