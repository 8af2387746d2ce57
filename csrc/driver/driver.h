// From a graph to an executable: the pipeline, and the process-wide state it uses (backend, kernel
// cache, store).
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "driver/options.h"
#include "graph/graph.h"
#include "runtime/executable.h"
#include "runtime/trial.h"

namespace mlcc::driver {

// What a compilation did, for logs, reports and tests.
struct CompileStats {
  int64_t nodes = 0;            // graph nodes that do arithmetic or move data
  int64_t generated_nodes = 0;  // those of them that stand in kernels
  int64_t kernels = 0;          // launches in the executable
  int64_t compiled = 0;         // kernels compiled now
  int64_t memory_hits = 0;
  int64_t disk_hits = 0;
  int64_t extern_calls = 0;
  int64_t replaced_calls = 0;  // copies into inputs that kernels write themselves
  int64_t kept = 0;            // values that are kept across calls, by graphs of their own
  int64_t live_bytes = 0;      // of values, inputs among them, at a time; of known sizes only
  double seconds = 0;
};

struct Compilation {
  std::shared_ptr<const runtime::Executable> executable;
  std::string graph_text;  // as it came in: what a cache entry stores
  CompileStats stats;
  // Of each kept input, what computes it on the CPU of the file. Empty unless asked for.
  std::vector<std::shared_ptr<const runtime::Executable>> recipes;
  // Why nodes did not join a kernel that computes or reads what they need, in program order.
  std::vector<std::string> fusion_refusals;
};

// Where kernels and calls will run.
struct Host {
  int64_t threads = 1;
  runtime::ParallelFor parallel_for;
  // What runs an executable over made-up inputs of these sizes, calls included; empty where calls
  // cannot be made now.
  std::function<std::function<void()>(std::shared_ptr<const runtime::Executable>,
                                      const std::function<int64_t(std::string_view)>& size_of)>
      prepare{};
  // How the two are compared.
  std::function<Result<runtime::TrialResult>(
      const std::function<void()>& first, const std::function<void()>& second, double most_seconds)>
      compare = runtime::time_in_turns;
  std::string libraries{};  // the versions of those that are called
};

// Verifies, rewrites, fuses, lowers, compiles (or finds) every kernel of `graph`. `graph` is
// consumed. With `host`, kernels and calls may be run, over memory of their own, to see which plan
// is faster; without, the default is taken.
Compilation compile(std::unique_ptr<graph::Graph> graph, const Options& options,
                    const Host* host = nullptr);

// The same for a file, also where this machine does not run code for `options.cpu`: the
// executable's kernels are not callable then, but those of its kept inputs are this machine's.
// `with_recipes`: the file computes them too.
Compilation compile_for_file(std::unique_ptr<graph::Graph> graph, const Options& options,
                             bool with_recipes);

}  // namespace mlcc::driver
