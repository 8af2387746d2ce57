// Text -> object code, the whole way.
#pragma once

#include <string>
#include <string_view>

#include "support/result.h"

namespace mlcc::codegen::cpu {

struct CompileInput {
  std::string_view text;  // one kernel, or a module of LLVM IR
  std::string cpu;
  std::string features;
  int64_t vector_bits = 0;
  bool want_llvm_text = false;
  bool want_asm_text = false;
  bool has_scratch = false;
};

struct CompileOutput {
  std::string object;
  std::string llvm_text;  // after optimization
  std::string asm_text;
};

// Error on malformed text or an unknown CPU, InternalError on a bug. Thread safe.
Result<CompileOutput> compile_kernel(const CompileInput& input);

// The same for LLVM IR, which names neither machine nor layout of data.
Result<CompileOutput> compile_llvm(const CompileInput& input);

}  // namespace mlcc::codegen::cpu
