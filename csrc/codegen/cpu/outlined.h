// Functions of the module itself, for what is too long to stand wherever it is used.
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

// Whether the module has that function for arguments of such a type.
bool has_outlined(const OpContext& c, llvm::StringRef name, llvm::Type* first);

}  // namespace mlcc::codegen::cpu
