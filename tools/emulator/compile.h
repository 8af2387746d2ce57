// CUDA C++ text to a shared object, by the host's C++ compiler.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernel_scan.h"

namespace mlcc_emulator {

// What stands before each program's text; made from the cuda_host*.h at build time.
std::string_view cuda_host_text();

struct CompileRequest {
  std::string name;  // of the text, in messages
  std::string text;
  int arch = 90;
  std::vector<std::string> defines;  // NAME or NAME=VALUE
  std::string standard = "c++17";
};

struct Compiled {
  bool ok = false;
  std::string object;  // the bytes of the shared object
  std::string log;     // the compiler's messages
  std::vector<ScannedKernel> kernels;
};

// Safe from many threads at once. Leaves no files.
Compiled compile(const CompileRequest& request);

}  // namespace mlcc_emulator
