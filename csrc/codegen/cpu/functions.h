// The functions of scalar_functions.def (math.h): the short ones inline, the others as calls of
// functions of the module.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// `args` are f32 or f64, scalars or vectors.
llvm::Value* emit_function(const OpContext& c, loop::ScalarOp op,
                           llvm::ArrayRef<llvm::Value*> args);
// Of vectors side by side, as many of each argument.
Parts emit_functions(const OpContext& c, loop::ScalarOp op, llvm::ArrayRef<Parts> args);

}  // namespace mlcc::codegen::cpu
