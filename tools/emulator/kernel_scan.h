// Finds the kernels of a program of CUDA text.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mlcc_emulator {

struct ScannedKernel {
  std::string name;
  std::string max_threads;  // the arguments of __launch_bounds__ as written; empty: none
};

// `extern "C" __global__ void name(`, also inside `extern "C" {}`, and `MLCC_KERNEL(name,
// threads)`, outside of namespaces; each name once. Comments, literals and preprocessor lines are
// skipped.
std::vector<ScannedKernel> scan_kernels(std::string_view text);

}  // namespace mlcc_emulator
