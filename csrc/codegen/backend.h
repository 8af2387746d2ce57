// What turns loop-IR kernels into code for one kind of device.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "support/result.h"

namespace mlcc::codegen {

// What code is generated for. Everything in it enters the kernel's key through `str()`.
struct Target {
  std::string backend;      // "cpu", "cuda"
  std::string cpu;          // LLVM name, e.g. "znver4"; of a GPU its architecture, e.g. "sm_90"
  std::string features;     // "+avx512f,+avx512bw,...", sorted
  int64_t vector_bits = 0;  // 512, 256, 128, or 0: scalar code only
  std::string emitter;      // versions of emitter and compiler, and the compiler's options
  std::string str() const;
};

// Code of the kernels of one request: what a runtime::ObjectLoader of the same target opens.
struct ObjectCode {
  std::string bytes;
  // Filled only when dumps are asked for, and where the backend has such a stage.
  std::string llvm_text, asm_text, cuda_text, ptx_text;
};

struct KernelText {
  std::string_view text;        // canonical loop IR of one kernel
  std::string_view name = "k";  // of the kernel in the object: unique there, an identifier
};

constexpr int64_t kMostStackArray = 16 << 10;

struct CompileRequest {
  std::vector<KernelText> kernels;  // at most Backend::max_batch()
  // Code that assumes nothing of addresses and sizes, where a backend's usual code does. It is the
  // same elsewhere.
  bool is_general = false;
  // Arrays of more than kMostStackArray bytes lie in memory of the caller's: KernelArgs::scratch.
  bool has_scratch = false;
  bool want_llvm_text = false;
  bool want_asm_text = false;
  bool want_cuda_text = false;
  bool want_ptx_text = false;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Target& target() const = 0;
  // How many kernels one object may hold.
  virtual int64_t max_batch() const { return 1; }
  // Whether CompileRequest::is_general makes a difference.
  virtual bool has_general_code() const { return false; }
  // Unsupported with a reason where this backend has no code for an op; InternalError on a bug.
  // Thread safe.
  virtual Result<ObjectCode> compile(const CompileRequest& request) const = 0;
  // An object of what is no kernel, as text of LLVM IR. Unsupported where there is no LLVM. Thread
  // safe.
  virtual Result<ObjectCode> compile_llvm(std::string_view text) const;
};

}  // namespace mlcc::codegen
