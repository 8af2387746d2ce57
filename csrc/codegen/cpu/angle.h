// Angles less multiples of pi/2.
#pragma once

#include "codegen/cpu/float_math.h"

namespace mlcc::codegen::cpu {

// x = rest + low + n * pi/2 with |rest| <= pi/4 or hardly more; `quadrant` holds n mod 4 in its
// lowest two bits. `low` is what rounding took from the rest, of f32 and where `keeps_low` is set;
// else it is worth nothing. Infinity and NaN give NaN.
struct Angle {
  llvm::Value* rest;
  llvm::Value* low;
  llvm::Value* quadrant;
};

Angle reduce_angle(const FloatMath& m, llvm::Value* x, bool keeps_low = false);

}  // namespace mlcc::codegen::cpu
