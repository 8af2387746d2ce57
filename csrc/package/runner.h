// Runs a program over tensors in memory of the caller's.
#pragma once

#include <memory>
#include <span>

#include "package/mlcc_runtime.h"
#include "package/program.h"
#include "package/weights.h"
#include "runtime/kernel.h"

namespace mlcc::package {

// One call at a time. What a call has grown to stays for the next one.
class Runner {
 public:
  // Of the options, arena and allocator matter here. StatusError where they are none.
  Runner(const Program& program, const mlcc_context_options& options);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  // As mlcc_run. StatusError where the arguments are not what the program takes.
  void run(WeightsPtr weights, std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs,
           const runtime::ParallelFor& parallel_for);
  // As mlcc_infer.
  void infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs);

 private:
  class MemoryHost;

  const Program& program_;
  const mlcc_context_options options_;
  std::unique_ptr<MemoryHost> host_;
};

}  // namespace mlcc::package
