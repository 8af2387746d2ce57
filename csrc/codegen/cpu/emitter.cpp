#include "codegen/cpu/emitter.h"

#include <llvm/IR/Verifier.h>
#include <llvm/Support/raw_ostream.h>

#include <algorithm>

#include "codegen/cpu/function_emitter.h"
#include "runtime/object_loader.h"
#include "support/error.h"

namespace mlcc::codegen::cpu {
namespace {

void verify_module(const llvm::Module& module) {
  std::string errors;
  llvm::raw_string_ostream stream(errors);
  if (!llvm::verifyModule(module, &stream)) return;
  stream << module;
  MLCC_UNREACHABLE("kernel ", module.getName().str(), ": malformed LLVM IR: ", errors);
}

}  // namespace

void emit_kernel(llvm::Module& module, const loop::Kernel& kernel, const EmitOptions& options) {
  uint64_t scratch = 0;
  for (size_t i = 0; i < kernel.phases.size(); ++i) {
    FunctionEmitter emitter(module, kernel, options);
    emitter.emit(runtime::phase_symbol(kernel.name, static_cast<int64_t>(i)), kernel.phases[i]);
    scratch = std::max(scratch, emitter.scratch_bytes());
  }
  if (scratch > 0) {
    llvm::Type* type = llvm::Type::getInt64Ty(module.getContext());
    new llvm::GlobalVariable(module, type, /*isConstant=*/true, llvm::GlobalValue::ExternalLinkage,
                             llvm::ConstantInt::get(type, scratch),
                             runtime::scratch_symbol(kernel.name));
  }
  verify_module(module);
}

}  // namespace mlcc::codegen::cpu
