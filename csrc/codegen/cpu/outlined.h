// Functions of the module itself, for what is too long to stand wherever it is used, and branches
// around what is rare.
#pragma once

#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

using OutlinedBody = llvm::function_ref<llvm::Value*(llvm::ArrayRef<llvm::Value*>)>;

// Calls the function "mlcc.<name>.<type of the first argument>", whose linkage is internal. Where
// the module has none yet, `body` emits it: it is given the parameters and returns the result, of
// type `result`. The body depends on its arguments alone and writes nothing.
llvm::Value* emit_outlined(const OpContext& c, llvm::StringRef name,
                           llvm::ArrayRef<llvm::Value*> args, llvm::Type* result,
                           OutlinedBody body);

// `usual` where `is_rare` holds in no lane; else as many values that `rarely` emits, behind a
// branch.
Parts emit_unless(const OpContext& c, llvm::Value* is_rare, const Parts& usual,
                  llvm::function_ref<Parts()> rarely);

// Whether the module has that function for arguments of such a type.
bool has_outlined(const OpContext& c, llvm::StringRef name, llvm::Type* first);

}  // namespace mlcc::codegen::cpu
