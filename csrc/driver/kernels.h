// Finds or compiles the kernels that a compilation needs, for any device.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "driver/dump.h"
#include "driver/options.h"
#include "driver/session.h"
#include "loop/ir.h"
#include "runtime/executable.h"
#include "runtime/kernel_cache.h"

namespace mlcc::driver {

struct KernelRequest {
  std::string text;  // canonical loop IR
  Hash128 key;       // as kernel_key gives it
  int num_phases = 0;
  std::string label;  // for logs and messages: "add, rsqrt, mul"
  std::vector<runtime::KernelError> errors = {};
};

std::vector<runtime::KernelError> to_kernel_errors(const std::vector<loop::ErrorText>& errors);

Hash128 kernel_key(const std::string& text, const codegen::Target& target, const Options& options);

// One per request, in order. Those that are missing are compiled on several threads, in batches of
// what the backend takes. A reason where the backend has no code for one; Error where this machine
// does not run its code.
std::vector<Result<runtime::FoundKernel>> find_kernels(std::span<const KernelRequest> requests,
                                                       const DeviceBackend& device,
                                                       const Options& options, Dump& dump);

// The object code of each launch of a plan for the CPU, in order: from the store, else compiled
// again. UnsupportedError where there is none. `has_scratch`: as CompileRequest's.
std::vector<std::string> launch_objects(const runtime::ExecutablePlan& plan, const Options& options,
                                        bool has_scratch = false);

}  // namespace mlcc::driver
