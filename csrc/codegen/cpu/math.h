// Transcendental functions of f32, inline: no call, no branch, scalars and vectors alike. Error
// bounds in units in the last place of the correctly rounded result, over all inputs (measured
// exhaustively; the tests sample):
//   exp 1.1, expm1 1.6, log 1.1, tanh 1.3, erf 1.5, sigmoid 1.5
// NaN gives NaN, infinities their limits, overflow infinity; denormal arguments and results are
// kept.
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
