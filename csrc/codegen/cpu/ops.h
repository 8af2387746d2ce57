// Scalar ops and casts of the loop IR as LLVM instructions, on scalars and on vectors alike.
//
// Values in registers: bool is i1, f16 and bf16 are their bits in i16 (storage formats: only
// selected and cast), the other dtypes are LLVM's types of the same size. In memory bool is i8.
// Nothing emitted here traps (a divisor that would trap is replaced by 1) or is poison for any
// input, so that lanes which are masked off may hold anything. Nothing calls a library: objects
// have no undefined symbols.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include "codegen/cpu/target_machine.h"
#include "loop/ir.h"

namespace mlcc::codegen::cpu {

// What is computed side by side: the vectors of a loop that runs several at a time.
using Parts = llvm::SmallVector<llvm::Value*, 4>;

struct OpContext {
  llvm::IRBuilder<>& ir;
  const Instructions& has;
};

llvm::Type* register_type(llvm::LLVMContext& context, DType dtype);
llvm::Type* memory_type(llvm::LLVMContext& context, DType dtype);
// <lanes x scalar>, or the scalar itself where lanes is 1.
llvm::Type* with_lanes(llvm::Type* scalar, unsigned lanes);
// The type `scalar` with as many lanes as `value` has.
llvm::Type* like(const llvm::Value* value, llvm::Type* scalar);
unsigned lanes_of(const llvm::Value* value);
// Lanes [first, first + count); beyond the end they begin again, so that no lane is undefined.
llvm::Value* lanes_from(const OpContext& c, llvm::Value* value, unsigned first, unsigned count);
// Those of `low`, then those of `high`, which has as many.
llvm::Value* join_lanes(const OpContext& c, llvm::Value* low, llvm::Value* high);

// `dtype` is that of the operands (of the last one for select); all operands have the same lanes.
llvm::Value* emit_op(const OpContext& c, loop::ScalarOp op, DType dtype,
                     llvm::ArrayRef<llvm::Value*> args);
llvm::Value* emit_cast(const OpContext& c, DType from, DType to, llvm::Value* value);
// Of vectors side by side, at least one.
Parts emit_casts(const OpContext& c, DType from, DType to, const Parts& values);

// a*b + c rounded once; f64 needs the instruction.
llvm::Value* emit_fma(const OpContext& c, llvm::Value* a, llvm::Value* b, llvm::Value* addend);
// The C library's fmod, exact, in f32 or f64. Emits a loop.
llvm::Value* emit_float_rem(const OpContext& c, llvm::Value* a, llvm::Value* b);
// floor, ceil, trunc or round of f32 or f64.
llvm::Value* emit_rounding(const OpContext& c, loop::ScalarOp op, llvm::Value* value);

// True in some lane.
llvm::Value* emit_any(const OpContext& c, llvm::Value* mask);

}  // namespace mlcc::codegen::cpu
