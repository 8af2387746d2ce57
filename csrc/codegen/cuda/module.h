// What one compilation gives, as bytes: machine code (or PTX) of several kernels and, in front of
// it, what a launch needs to know of each. This is what stands in the kernel cache.
//
// Bytes (integers little-endian): magic "MLCCCU2\n", then the fields of Module in order; a text is
// its length (u64) and its characters, a list its length (u64) and its elements, a size expression
// its text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/kernel_info.h"
#include "support/result.h"

namespace mlcc::codegen::cuda {

struct ModuleKernel {
  std::string name;
  std::vector<std::string> sizes;  // names of its size parameters: what KernelInfo speaks of
  KernelInfo info;
};

struct Module {
  std::string arch;     // "sm_90", or "compute_90" of PTX
  std::string nvrtc;    // version
  std::string options;  // of the compiler
  bool is_ptx = false;
  std::vector<ModuleKernel> kernels;
  std::string code;

  const ModuleKernel* find(std::string_view name) const;  // null if it is not there
};

std::string encode_module(const Module& module);
// A reason where the bytes are not exactly one module. Never reads outside of them.
Result<Module> decode_module(std::string_view bytes);

}  // namespace mlcc::codegen::cuda
