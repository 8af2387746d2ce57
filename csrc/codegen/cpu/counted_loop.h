// The one form of a counted loop that the emitter writes.
#pragma once

#include "codegen/cpu/value.h"

namespace mlcc::codegen::cpu {

using LoopBody =
    llvm::function_ref<Parts(llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried)>;

// for (i = begin; i < end; i += step) carried = body(i, carried); returns the carried values. The
// test stands at the end, behind a guard, which is the form that hoisting wants.
Parts emit_counted_loop(llvm::IRBuilder<>& ir, llvm::Value* begin, llvm::Value* end, int64_t step,
                        llvm::ArrayRef<llvm::Value*> inits, LoopBody body);

}  // namespace mlcc::codegen::cpu
