// Transcendental functions of f32, inline: no call, no branch, scalars and vectors alike. Errors
// are at most 1.6 units in the last place of the correctly rounded result, over all inputs;
// decision 0011 has the bound of each function. NaN gives NaN, infinities their limits, overflow
// infinity; denormal arguments and results are kept.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

llvm::Value* emit_exp(const OpContext& c, llvm::Value* x);
llvm::Value* emit_expm1(const OpContext& c, llvm::Value* x);
llvm::Value* emit_log(const OpContext& c, llvm::Value* x);
llvm::Value* emit_tanh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_erf(const OpContext& c, llvm::Value* x);
llvm::Value* emit_sigmoid(const OpContext& c, llvm::Value* x);

}  // namespace mlcc::codegen::cpu
