// The one form of a counted loop, and of a branch without an alternative, that emitters write.
#pragma once

#include "codegen/cpu/value.h"

namespace mlcc::codegen::cpu {

using LoopBody =
    llvm::function_ref<Parts(llvm::Value* index, llvm::ArrayRef<llvm::Value*> carried)>;

// for (i = begin; i < end; i += step) carried = body(i, carried); returns the carried values. The
// test stands at the end, behind a guard, which is the form that hoisting wants.
Parts emit_counted_loop(llvm::IRBuilder<>& ir, llvm::Value* begin, llvm::Value* end, int64_t step,
                        llvm::ArrayRef<llvm::Value*> inits, LoopBody body);

// Runs `body`'s code only where the scalar `condition` holds.
void emit_guarded(llvm::IRBuilder<>& ir, llvm::Value* condition, llvm::function_ref<void()> body);

}  // namespace mlcc::codegen::cpu
