// Runs one kernel that is given as loop-IR text over raw buffers: for tests and tools.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "driver/options.h"
#include "runtime/executable.h"
#include "types/dtype.h"

namespace mlcc::loop {
struct Kernel;
}

namespace mlcc::driver {

struct LoopKernelBuffer {
  std::string name;
  DType dtype;
};

// The buffer parameters of the kernel, in order. Error on malformed text.
std::vector<LoopKernelBuffer> loop_kernel_buffers(std::string_view text);

// Runs the kernel on `backend`, "cpu", "cuda" or "interpreter"; buffers point to their first
// elements, in host memory (a GPU that is not emulated gets copies).
// Gives the check that failed, if one did. Error on malformed text, a wrong number of sizes or
// buffers, or what the backend has no code for.
std::optional<runtime::KernelError>
run_loop_kernel(std::string_view text, std::span<const int64_t> sizes,
                std::span<void* const> buffers, std::string_view backend, const Options& options,
                const runtime::ParallelFor& parallel_for);

// The same on a GPU, or the emulated one, for a kernel that is verified already.
runtime::CheckFailure run_on_gpu(const loop::Kernel& kernel, std::span<const int64_t> sizes,
                                 std::span<void* const> buffers, const Options& options);

}  // namespace mlcc::driver
