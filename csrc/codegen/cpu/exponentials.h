// What the exponentials of f64 have in common with functions that contain one.
#pragma once

#include "codegen/cpu/float_math.h"

namespace mlcc::codegen::cpu {

// e^(x + rest) = 2^exponent (1 + fraction), |fraction| < 0.415; |x| < 800 or NaN. `rest` is tiny,
// or null for 0.
struct PowerF64 {
  llvm::Value* exponent;
  llvm::Value* fraction;
};
PowerF64 split_exp_f64(const FloatMath& m, llvm::Value* x, llvm::Value* rest,
                       llvm::ArrayRef<double> coefficients = kExpF64);

// e^(x + rest) for any x.
llvm::Value* exp_f64(const FloatMath& m, llvm::Value* x, llvm::Value* rest);

// e^x / 2 for x >= 0 or NaN: infinite only where that is.
llvm::Value* half_exp_f64(const FloatMath& m, llvm::Value* x);

}  // namespace mlcc::codegen::cpu
