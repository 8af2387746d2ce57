// The functions of scalar_functions.def: which are inline (math.h) and which are calls of the C
// library (library.h). The bounds of their errors are stated there.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// `args` are f32 or f64, scalars or vectors.
llvm::Value* emit_function(const OpContext& c, loop::ScalarOp op,
                           llvm::ArrayRef<llvm::Value*> args);

}  // namespace mlcc::codegen::cpu
