// Whether a library's call or code for it is faster, where a pass is in doubt: both run alone, once
// for each kind of call (decision 0033).
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string_view>

#include "driver/driver.h"
#include "driver/options.h"
#include "graph/graph.h"
#include "graph/passes/pipeline.h"
#include "runtime/executable.h"
#include "runtime/trial.h"
#include "support/result.h"

namespace mlcc::driver {

// Of one graph. Both outlive it.
class Choice {
 public:
  // Compiles a graph of one call, which becomes code where `code_of` is the pass that is in doubt,
  // and stays a call otherwise.
  using Compile = std::function<std::shared_ptr<const runtime::Executable>(
      std::unique_ptr<graph::Graph>, std::optional<graph::Pass> code_of)>;

  Choice(const Options& options, const Host& host, Compile compile)
      : options_(options), host_(host), compile_(std::move(compile)) {}

  // The verdict of this process and of the store, or of a measurement now; `guess` where nothing
  // can be measured, or measurements have taken long enough for one graph. For one call, at one
  // size, it is the same in all of a process.
  bool is_code_faster(graph::Pass pass, const graph::Graph& graph, const graph::Node& call,
                      bool guess);

 private:
  using Prepare = std::function<std::function<void()>()>;
  // Or why they do not run.
  Result<runtime::TrialResult> run_both(const Prepare& prepare_call,
                                        const Prepare& prepare_code) const;

  const Options& options_;
  const Host& host_;
  const Compile compile_;
  double seconds_ = 0;  // that measurements have taken
};

}  // namespace mlcc::driver
