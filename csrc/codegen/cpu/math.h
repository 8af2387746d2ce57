// The functions of scalar_functions.def as code, scalars and vectors alike. NaN gives NaN,
// infinities their limits, overflow infinity; denormal arguments and results are kept, and so are
// the signs of zeros: special values are those of C's Annex F.
//
// Errors are at most 2 units in the last place of the exact result in f32 and 4 in f64, over all
// inputs; decisions 0010 and 0011 have what was found of each function.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// Of f32.
llvm::Value* emit_exp(const OpContext& c, llvm::Value* x);
llvm::Value* emit_exp2(const OpContext& c, llvm::Value* x);
llvm::Value* emit_expm1(const OpContext& c, llvm::Value* x);
llvm::Value* emit_tanh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_erf(const OpContext& c, llvm::Value* x);
llvm::Value* emit_erfc(const OpContext& c, llvm::Value* x);
llvm::Value* emit_sigmoid(const OpContext& c, llvm::Value* x);
// 2^(steps + rest): multiples of 1/16 between -160 and 150, and |rest| <= 1/32.
llvm::Value* exp2_of_steps(const OpContext& c, llvm::Value* steps, llvm::Value* rest);

// Of f64.
llvm::Value* emit_exp_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_exp2_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_expm1_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_tanh_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_erf_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_erfc_f64(const OpContext& c, llvm::Value* x);
llvm::Value* emit_sigmoid_f64(const OpContext& c, llvm::Value* x);

// Of both.
llvm::Value* emit_sinh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_cosh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_log(const OpContext& c, llvm::Value* x);
llvm::Value* emit_log1p(const OpContext& c, llvm::Value* x);
llvm::Value* emit_log2(const OpContext& c, llvm::Value* x);
llvm::Value* emit_log10(const OpContext& c, llvm::Value* x);
llvm::Value* emit_sin(const OpContext& c, llvm::Value* x);
llvm::Value* emit_cos(const OpContext& c, llvm::Value* x);
llvm::Value* emit_tan(const OpContext& c, llvm::Value* x);
llvm::Value* emit_asin(const OpContext& c, llvm::Value* x);
llvm::Value* emit_acos(const OpContext& c, llvm::Value* x);
llvm::Value* emit_atan(const OpContext& c, llvm::Value* x);
llvm::Value* emit_atan2(const OpContext& c, llvm::Value* y, llvm::Value* x);
llvm::Value* emit_asinh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_acosh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_atanh(const OpContext& c, llvm::Value* x);
llvm::Value* emit_pow(const OpContext& c, llvm::Value* x, llvm::Value* y);
llvm::Value* emit_hypot(const OpContext& c, llvm::Value* x, llvm::Value* y);

}  // namespace mlcc::codegen::cpu
