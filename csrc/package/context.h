// What one call of a package needs beside the package: memory for what is computed, and threads.
#pragma once

#include <memory>
#include <span>

#include "package/mlcc_runtime.h"
#include "package/package.h"
#include "package/runner.h"
#include "package/thread_pool.h"
#include "runtime/kernel.h"

namespace mlcc::package {

// One call at a time.
class Context {
 public:
  Context(std::shared_ptr<const Package> package, const mlcc_context_options& options);

  // As mlcc_run. StatusError where the arguments are not what the program takes.
  void run(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs);
  // As mlcc_infer.
  void infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs);

 private:
  const std::shared_ptr<const Package> package_;
  const ThreadPoolPtr pool_;  // null: no threads of its own
  const runtime::ParallelFor parallel_for_;
  Runner runner_;
};

}  // namespace mlcc::package
