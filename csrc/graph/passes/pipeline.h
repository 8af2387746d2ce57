// Runs graph passes: by name, or all of them in the order that a compilation wants.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string_view>

#include "graph/graph.h"
#include "graph/passes/options.h"

namespace mlcc::graph {

enum class Pass : uint8_t {
#define GRAPH_PASS(enumerator, function, text, options, summary) enumerator,
#include "graph/passes/passes.def"
#undef GRAPH_PASS
};

struct PassInfo {
  Pass pass;
  std::string_view name;
  std::string_view summary;
};
std::span<const PassInfo> all_passes();
std::optional<Pass> parse_pass(std::string_view name);

// What one run of a pass did.
struct PassReport {
  std::string_view name;
  bool has_changed;
  int64_t rewrites;
  double seconds;
};

struct PipelineOptions {
#ifdef NDEBUG
  bool verify = false;
#else
  bool verify = true;  // after every pass; the InternalError names the pass
#endif
  int64_t bisect = -1;  // stop after so many rewrites in all; -1: no limit
  std::optional<TileOptions> tiles;
  bool has_library = true;        // as PassOptions have it
  bool narrows_products = false;  // products of f32 may be of operands rounded to bf16
  bool quantizes_rows = false;    // as PassOptions have it
  // As PassOptions have it, for the code that a pass would make.
  std::function<bool(Pass, const Graph&, const Node& call, bool guess)> is_code_faster;
  std::function<void(const PassReport&)> report;
  // After each pass that changed something.
  std::function<void(std::string_view pass, const Graph&)> dump;
  std::function<void(std::string_view pass, const Node&, std::string_view reason)> on_no_match;
};

// Runs passes on one graph under one set of options; the budget for bisection counts over all of
// them.
class PassRunner {
 public:
  PassRunner(Graph& graph, const PipelineOptions& options)
      : graph_(graph), options_(options), budget_(options.bisect) {}

  bool run(Pass pass);  // whether it changed the graph
  int64_t rewrites() const { return budget_.used(); }

 private:
  Graph& graph_;
  const PipelineOptions& options_;
  RewriteBudget budget_;
};

// The passes of a compilation before fusion.
void run_pipeline(Graph& graph, const PipelineOptions& options);

}  // namespace mlcc::graph
