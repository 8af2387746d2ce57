// Angles less multiples of pi/2.
#pragma once

#include "codegen/cpu/float_math.h"

namespace mlcc::codegen::cpu {

// x = rest + low + n * pi/2 with |rest| <= pi/4 or hardly more; `quadrant` holds n mod 4 in its
// lowest two bits. The rest errs by one unit in the last place; where `is_precise` is set, by half
// of one, and of f32 `low` has what rounding took from it. Else that is 0. Infinity and NaN give
// NaN.
struct Angle {
  llvm::Value* rest;
  llvm::Value* low;
  llvm::Value* quadrant;
};

Angle reduce_angle(const FloatMath& m, llvm::Value* x, bool is_precise = false);

}  // namespace mlcc::codegen::cpu
