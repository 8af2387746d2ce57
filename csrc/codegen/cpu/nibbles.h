// Integers that four bits of a byte tell: one of sixteen numbers.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// As floats: of ((bytes >> k) & 15) + a constant, or without the shift or the sum, of vectors of a
// dtype of one byte. Null where the value is no such thing, and on CPUs without AVX2.
llvm::Value* nibbles_to_f32(const OpContext& c, DType dtype, llvm::Value* value);

}  // namespace mlcc::codegen::cpu
