// What turns a loop-IR kernel into callable code for one kind of device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "support/result.h"

namespace mlcc::codegen {

// What code is generated for. Everything in it enters the kernel's key through `str()`.
struct Target {
  std::string backend;      // "cpu"
  std::string cpu;          // LLVM name, e.g. "znver4"
  std::string features;     // "+avx512f,+avx512bw,...", sorted
  int64_t vector_bits = 0;  // 512, 256, 128, or 0: scalar code only
  std::string emitter;      // version of emitter and LLVM
  std::string str() const;
};

// Relocatable object code of one kernel: phase i is the function "<name>.p<i>".
struct ObjectCode {
  std::string bytes;
  std::string llvm_text, asm_text;  // filled only when dumps are asked for
};

struct CompileRequest {
  std::string_view text;  // canonical loop IR of one kernel
  bool want_llvm_text = false;
  bool want_asm_text = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Target& target() const = 0;
  // Unsupported with a reason where this backend has no code for an op; InternalError on a bug.
  virtual Result<ObjectCode> compile(const CompileRequest& request) const = 0;
};

}  // namespace mlcc::codegen
