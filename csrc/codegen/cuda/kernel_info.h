// What a launch of a CUDA kernel needs beside its code: how each phase is spread over threads, what
// its parameters are, and under which conditions the code is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "types/symbolic.h"

namespace mlcc::codegen::cuda {

// Code for the usual case may assume that pointers are aligned, that offsets fit 32 bits and that
// sizes in indices are not negative; the general code assumes nothing. A launch that does not meet
// KernelInfo's conditions takes the general code, which is compiled when it is first needed.
enum class Variant : uint8_t { kUsual, kGeneral };

// One phase: a __global__ function. Iterations are dealt to groups of threads; with more groups
// than the grid has, each takes every n-th iteration, so any grid is right.
struct PhaseInfo {
  std::string function;      // its extern "C" name
  int32_t threads = 0;       // per block
  int32_t group = 0;         // threads that run one iteration together: a power of two that divides
                             // `threads`; above 32 it is `threads`
  int32_t shared_bytes = 0;  // dynamic shared memory of a block
  // As the compiler reports them; -1: unknown.
  int32_t registers = -1;
  int32_t spilled_bytes = -1;
  int32_t local_bytes = -1;
  int32_t static_shared_bytes = -1;
};

// A size expression, over the kernel's sizes, that must be a multiple of `divisor`.
struct Divisibility {
  SymExpr expr;
  int64_t divisor;
};

struct KernelInfo {
  // Parameters of every phase's function, in this order: each buffer (a pointer; the value itself
  // if it is passed by value), each size (i64), the phase's number of iterations (i64), and, if
  // `has_checks`, a pointer to a FaultRecord.
  std::vector<PhaseInfo> phases;
  std::vector<int32_t> alignment;    // per buffer, in bytes: what its address must be a multiple of
  std::vector<int32_t> value_bytes;  // per buffer: size of what is passed by value, 0: a pointer
  // For the emulator, per buffer: how much of it there is, over the kernel's sizes, and 1 if what
  // it holds before the kernel is undefined.
  std::vector<SymExpr> buffer_bytes;
  std::vector<int32_t> is_fresh;
  std::vector<Divisibility> divisible;
  std::vector<SymExpr> below_2_30;   // over the kernel's sizes
  std::vector<int32_t> nonnegative;  // sizes, by place, that an index takes for non-negative
  bool has_checks = false;
};

// Where a kernel reports a failed check: host memory that the device can write. `code` is 0 until
// the first failure, whose thread makes it -1, writes the rest, then the code, and then 1 to where
// `pending` points in the device's eyes: what tells the host to look at the device's records.
struct FaultRecord {
  int64_t code;
  int64_t details[2];
  uint64_t pending;
};

}  // namespace mlcc::codegen::cuda
