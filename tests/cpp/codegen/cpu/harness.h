// Runs loop-IR text on the CPU backend, for several CPUs, and compares every buffer with the
// interpreter's.
//
// Buffers end at an unmapped page, so that an access beyond a buffer's end ends the test. Ranges of
// parallel phases are split at random places. Code for AArch64 runs under qemu (aarch64/guest.h).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "aarch64/guest.h"
#include "codegen/backend.h"
#include "loop/ir.h"
#include "runtime/kernel.h"

namespace mlcc::codegen::cpu::testing {

// The CPUs that are tested: those that MLCC_TEST_CPUS names; where it is not set this machine's,
// haswell (AVX2) and x86-64 (scalar, no SSE4.1, no FMA), as far as they run here.
const std::vector<std::shared_ptr<Backend>>& backends();
const Backend& host_backend();

// A kernel that can be run: one of the two.
struct Code {
  runtime::KernelPtr host;
  std::shared_ptr<const aarch64::GuestKernel> guest;
};

Code load(const std::string& object, const loop::Kernel& kernel);

// Memory whose end is the end of the mapped memory.
class GuardedBuffer {
 public:
  explicit GuardedBuffer(size_t bytes);
  ~GuardedBuffer();
  GuardedBuffer(GuardedBuffer&& other) noexcept;
  GuardedBuffer(const GuardedBuffer&) = delete;
  GuardedBuffer& operator=(const GuardedBuffer&) = delete;
  void* data() const { return data_; }
  std::span<uint8_t> bytes() const { return {static_cast<uint8_t*>(data_), bytes_}; }

 private:
  void* mapping_;
  size_t mapped_;
  void* data_;
  size_t bytes_;
};

// What a kernel is given of a buffer: all of its memory.
struct Memory {
  std::span<std::byte> bytes;
  Memory(const GuardedBuffer& buffer) : bytes(std::as_writable_bytes(buffer.bytes())) {}
  template <typename T>
  Memory(std::vector<T>& elements) : bytes(std::as_writable_bytes(std::span(elements))) {}
};

struct IntRange {
  int64_t low, high;  // closed
};

struct Comparison {
  double relative = 0;     // error allowed of floats, relative to max(1, |expected|)
  double ulps = 0;         // or in units in the last place of the buffer's dtype
  bool zero_sign = true;   // whether -0.0 and 0.0 differ
  bool specials = true;    // whether float inputs hold NaN, infinities, denormals, huge values
  bool needs_fma = false;  // a CPU without the instruction may say that it has no code
  uint64_t seed = 1;
  std::map<std::string, IntRange> ranges;  // values of integer (and float) buffers, by name
};

// Runs `text` (one kernel) in all backends; GoogleTest failures name CPU, sizes, buffer and
// element.
void expect_as_interpreted(const std::string& text, const std::vector<int64_t>& sizes,
                           const Comparison& how = {});

// Replaces every $NAME in `text`.
std::string substitute(std::string text, const std::map<std::string, std::string>& values);

// Runs every phase of a compiled kernel on the buffers; returns the check that failed.
runtime::CheckFailure run_kernel(const loop::Kernel& kernel, const Code& code,
                                 const std::vector<int64_t>& sizes,
                                 const std::vector<Memory>& buffers, std::mt19937_64& random);

}  // namespace mlcc::codegen::cpu::testing
