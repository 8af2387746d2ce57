// The ABI of compiled kernels and the object that keeps one callable.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace mlcc::runtime {

constexpr size_t kMaxCheckDetails = 2;
using CheckDetails = std::array<int64_t, kMaxCheckDetails>;

// What every phase function receives. All pointers are to the first element (the tensor's data
// pointer).
struct KernelArgs {
  void* const* buffers;        // in the kernel's parameter order
  const int64_t* sizes;        // in the kernel's parameter order
  int64_t* details = nullptr;  // where a check that fails writes its details; run_phase sets it
};

// Runs iterations [begin, end) of a phase; 0, or the code of the check that failed.
using PhaseFunction = int64_t (*)(const KernelArgs* args, int64_t begin, int64_t end);

// Callable code. Immutable; whoever holds the shared pointer keeps the code mapped.
struct Kernel {
  std::string name;
  std::vector<PhaseFunction> phases;
  std::shared_ptr<void> code;  // unloads the object when the last holder goes
};
using KernelPtr = std::shared_ptr<const Kernel>;

// Runs body(begin, end) over a partition of [0, n), each part at least `grain` long except the
// last, on any threads, and returns when all is done. `body` never throws. libtorch's
// torch_parallel_for in a process with torch.
using ParallelFor = std::function<void(int64_t n, int64_t grain,
                                       const std::function<void(int64_t, int64_t)>& body)>;

// A check that failed, and the numbers for its text; code 0: none did.
struct CheckFailure {
  int64_t code = 0;
  CheckDetails details{};
};

// Runs one phase over [0, extent); of several failures, tells the one of the first range.
CheckFailure run_phase(PhaseFunction function, const KernelArgs& args, int64_t extent,
                       int64_t grain, const ParallelFor& parallel_for);

// `text` with details[0] in place of {0}, and so on.
std::string fill_in(std::string_view text, const CheckDetails& details);

}  // namespace mlcc::runtime
