// Loop IR -> LLVM IR.
//
//   kernel @k(%n: i64; %x: in f32[%n], %y: out f32[%n]) {
//     for %i in 0..%n parallel { ... }        ->  i64 @k.p0(ptr args, i64 begin, i64 end)
//     barrier
//     store ...                               ->  i64 @k.p1(ptr args, i64 begin, i64 end)
//   }
//
// Phase i becomes the function "<kernel>.p<i>" of runtime/kernel.h's ABI. A phase that is lets and
// then one parallel loop runs its iterations loop.begin + [begin, end); any other phase ignores the
// range: it is called once, with [0, 1).
//
// vector(W) unroll(U) loops run W*U iterations at once in LLVM vectors of W lanes; what is left
// runs W at a time under a mask. W = 0 is vector_bits / 32; without vector registers W is always 1.
// Reduce loops keep U vectors per carried value, which are then combined with each other and across
// their lanes. No fast-math flag is ever set. Stores that stream are non-temporal from the first
// whole vector in memory on, where those of one vector loop come to one at the same iteration.
#pragma once

#include <llvm/IR/Module.h>

#include <string>

#include "codegen/cpu/target_machine.h"
#include "loop/ir.h"

namespace mlcc::codegen::cpu {

struct EmitOptions {
  std::string cpu;
  std::string features;
  int64_t vector_bits = 0;    // 512, 256, 128, or 0: scalar code
  Instructions instructions;  // of cpu and features
  bool has_scratch = false;   // CompileRequest::has_scratch
};

// Requires a verified kernel that why_unsupported (supported.h) has nothing against. Adds the
// kernel's functions to `module`, which has its data layout.
void emit_kernel(llvm::Module& module, const loop::Kernel& kernel, const EmitOptions& options);

}  // namespace mlcc::codegen::cpu
