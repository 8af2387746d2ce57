// Kernels for AArch64 on a machine of another kind: a small program (runner.c) runs them under
// qemu-aarch64, in memory that it shares with the tests.
//
// Each buffer is copied to where its end is that of the memory the kernel may touch, and back when
// it has run. A kernel that crashes ends the runner, and that is an Error here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/kernel.h"

namespace mlcc::aarch64 {

struct GuestBuffer {
  std::span<std::byte> memory;
  size_t first = 0;  // the byte where the first element begins
};

// Iterations of a phase that run in one call.
struct GuestRange {
  int64_t phase, begin, end;
};

// Whether bytes of object code are an AArch64 object.
bool is_guest_code(const std::string& object);

// Linked code of one kernel.
class GuestKernel {
 public:
  // Starts the runner where this is the first one. Error where there is no qemu, no linker, or the
  // object refers to anything that is not in it.
  GuestKernel(const std::string& object, std::string name);
  ~GuestKernel();
  GuestKernel(const GuestKernel&) = delete;
  GuestKernel& operator=(const GuestKernel&) = delete;

  // Runs the ranges one after the other, until a check fails.
  runtime::CheckFailure run(std::span<const GuestBuffer> buffers, std::span<const int64_t> sizes,
                            std::span<const GuestRange> ranges) const;

 private:
  const std::string name_;
  int64_t code_ = 0;
};

}  // namespace mlcc::aarch64
