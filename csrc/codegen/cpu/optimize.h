// LLVM's middle end, for modules whose vectors are explicit.
//
//   before: expressions as emitted, index arithmetic repeated, invariants inside loops
//   after:  no stack slot with constant indices, no repeated or invariant computation
//
// Runs no vectorizer, no unroller and no inliner: the loop IR has decided. Keeps IEEE semantics.
#pragma once

namespace llvm {
class Module;
class TargetMachine;
}  // namespace llvm

namespace mlcc::codegen::cpu {

void optimize(llvm::Module& module, llvm::TargetMachine& machine);

}  // namespace mlcc::codegen::cpu
