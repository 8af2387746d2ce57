// Functions of scalar_functions.def as calls of the C library: of its vector forms (libmvec) where
// the CPU has AVX2, of libm for scalars and elsewhere. Special values are those of C's Annex F.
//
// Error bounds in units in the last place of the exact result, over all inputs: 2 in f32, where
// functions whose f32 form may exceed that are computed in f64; 4 in f64 (glibc's bound for its
// vector forms; 1 for scalars).
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// `args` are f32 or f64, scalars or vectors of a power of two of lanes. Not `sigmoid`, which no
// library has. Nothing is written, and no value of a lane makes the call trap.
llvm::Value* emit_library_call(const OpContext& c, loop::ScalarOp op,
                               llvm::ArrayRef<llvm::Value*> args);

}  // namespace mlcc::codegen::cpu
