// What one call of a package needs beside the package: memory for what is computed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "package/mlcc_runtime.h"
#include "package/package.h"
#include "package/thread_pool.h"
#include "runtime/kernel.h"

namespace mlcc::package {

// One call at a time.
class Context {
 public:
  Context(std::shared_ptr<const Package> package, const mlcc_context_options& options);
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  // As mlcc_run. StatusError where the arguments are not what the program takes.
  void run(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs);
  // As mlcc_infer.
  void infer(std::span<const mlcc_tensor> inputs, std::span<mlcc_tensor> outputs);

 private:
  class MemoryHost;

  const std::shared_ptr<const Package> package_;
  const mlcc_context_options options_;
  const ThreadPoolPtr pool_;  // null: no threads of its own
  const runtime::ParallelFor parallel_for_;
  std::unique_ptr<MemoryHost> host_;
};

}  // namespace mlcc::package
