// Loop IR to CUDA C++ text.
#pragma once

#include <string>
#include <string_view>

#include "codegen/cuda/kernel_info.h"
#include "loop/ir.h"
#include "support/result.h"

namespace mlcc::codegen::cuda {

struct EmitOptions {
  Variant variant = Variant::kUsual;
  // Of the device (schedule/machine.h); by default what most of them have.
  int64_t max_shared_bytes = 48 * 1024;  // of a block
  int64_t registers_per_multiprocessor = 65536;
  int64_t threads_per_multiprocessor = 2048;
};

// The functions of one kernel, to be put behind the prelude, with others or alone.
struct CudaSource {
  std::string text;
  KernelInfo info;
};

// `name` begins the names of all functions: unique in a program. The same kernel, name and options
// give the same text. Unsupported with a reason where there is no CUDA code for something in it.
Result<CudaSource> emit_kernel(const loop::Kernel& kernel, std::string_view name,
                               const EmitOptions& options);

// What stands before the kernels of a program: types, vectors, conversions, shuffles, atomics.
// Needs no header; where __CUDACC_RTC__ is not defined it is C++ over the names of tools/emulator.
std::string_view prelude();

// Changes with the emitter and the prelude: part of a target's name.
std::string_view emitter_version();

}  // namespace mlcc::codegen::cuda
