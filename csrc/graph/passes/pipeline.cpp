#include "graph/passes/pipeline.h"

#include <chrono>
#include <string>

#include "graph/passes/attention/attention.h"
#include "graph/passes/attention/attention_gradients.h"
#include "graph/passes/attention/key_ranges.h"
#include "graph/passes/contractions/contractions.h"
#include "graph/passes/contractions/convolution_gradients.h"
#include "graph/passes/contractions/convolutions.h"
#include "graph/passes/contractions/group_products.h"
#include "graph/passes/contractions/integer_products.h"
#include "graph/passes/contractions/narrow_products.h"
#include "graph/passes/contractions/row_sums.h"
#include "graph/passes/contractions/winograd.h"
#include "graph/passes/layout/lay_pads.h"
#include "graph/passes/layout/pack_operands.h"
#include "graph/passes/layout/permute_late.h"
#include "graph/passes/layout/spread_rows.h"
#include "graph/passes/simplify/canonicalize.h"
#include "graph/passes/simplify/cse.h"
#include "graph/passes/simplify/dce.h"
#include "graph/passes/simplify/divide_once.h"
#include "graph/passes/simplify/fold_constants.h"
#include "graph/passes/simplify/gather_early.h"
#include "graph/passes/simplify/merge_reductions.h"
#include "graph/text.h"
#include "support/error.h"

namespace mlcc::graph {
namespace {

// Turns of all passes that a graph may take beside one for each node. What one turn leaves to the
// next is a chain of nodes as a rule, so no graph comes near.
constexpr size_t kTurnsOfSmallGraphs = 64;

// In the order of the enumeration.
constexpr PassInfo kPasses[] = {
#define GRAPH_PASS(enumerator, function, text, options, summary) {Pass::enumerator, text, summary},
#include "graph/passes/passes.def"
#undef GRAPH_PASS
};

bool call(Pass pass, Graph& graph, const PassOptions& common) {
  switch (pass) {
#define GRAPH_PASS(enumerator, function, text, options, summary)                                   \
  case Pass::enumerator: return function(graph, options{common});
#include "graph/passes/passes.def"
#undef GRAPH_PASS
  }
  MLCC_UNREACHABLE("graph pass ", static_cast<int>(pass));
}

void verify_after(std::string_view pass, const Graph& graph) {
  try {
    verify(graph);
  } catch (const InternalError& error) {
    throw InternalError(detail::join("after graph pass ", pass, ": ", error.what()));
  }
}

}  // namespace

std::span<const PassInfo> all_passes() { return kPasses; }

std::optional<Pass> parse_pass(std::string_view name) {
  for (const PassInfo& info : kPasses)
    if (info.name == name) return info.pass;
  return std::nullopt;
}

bool PassRunner::run(Pass pass) {
  const std::string_view name = kPasses[static_cast<size_t>(pass)].name;
  PassOptions common;
  common.budget = &budget_;
  common.tiles = options_.tiles;
  common.has_library = options_.has_library;
  common.quantizes_rows = options_.quantizes_rows;
  if (options_.is_code_faster)
    common.is_code_faster = [&](const Graph& graph, const Node& node, bool guess) {
      return options_.is_code_faster(pass, graph, node, guess);
    };
  if (options_.on_no_match)
    common.on_no_match = [&](const Node& node, std::string_view reason) {
      options_.on_no_match(name, node, reason);
    };
  const int64_t rewrites = budget_.used();
  const auto begin = std::chrono::steady_clock::now();
  const bool has_changed = call(pass, graph_, common);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  if (options_.verify) verify_after(name, graph_);
  if (options_.report)
    options_.report({name, has_changed, budget_.used() - rewrites, elapsed.count()});
  if (options_.dump && has_changed) options_.dump(name, graph_);
  return has_changed;
}

void run_pipeline(Graph& graph, const PipelineOptions& options) {
  PassRunner runner(graph, options);
  // What the importer leaves behind (half of an AOTAutograd graph) would only be matched in vain.
  runner.run(Pass::kDce);
  // First, since they make pointwise ops of what calls add.
  runner.run(Pass::kContractions);
  // After contractions, which it looks for, and before divisions and products are rewritten.
  runner.run(Pass::kAttention);
  runner.run(Pass::kAttentionGradients);
  // Before convolutions are contractions too.
  if (options.narrows_products) runner.run(Pass::kNarrowProducts);
  runner.run(Pass::kConvolutions);
  runner.run(Pass::kConvolutionGradients);
  // What is left of calls: attention looks for products.
  runner.run(Pass::kRowSums);
  // Each of the five makes work for the others, so they take turns until none has any: every
  // rewrite leaves fewer nodes that are no constants, or moves a gather closer to the inputs or a
  // permute closer to the outputs.
  // Should one undo what another one does, the program does not wait for ever.
  size_t turns = graph.nodes().size() + kTurnsOfSmallGraphs;
  for (bool has_changed = true; has_changed && turns > 0; --turns) {
    // Before canonicalize: a rule like x * 1 sees a constant only once its casts and expands are
    // folded.
    has_changed = runner.run(Pass::kFoldConstants);
    has_changed |= runner.run(Pass::kCanonicalize);
    // After canonicalize, which merges the permutes that have met.
    has_changed |= runner.run(Pass::kPermuteLate);
    // Before cse, which makes one of a value's gathers that several readers brought.
    has_changed |= runner.run(Pass::kGatherEarly);
    // After canonicalize: equal computations are written the same way now, so that their text is
    // equal. What it merges brings new pairs together for the next turn.
    has_changed |= runner.run(Pass::kCse);
  }
  // Once equal computations are one: who else reads the rows is known.
  runner.run(Pass::kMergeReductions);
  // Once constants of masks are known.
  runner.run(Pass::kKeyRanges);
  // Once equal computations are one: the exponentials that are divided are those that are summed.
  runner.run(Pass::kDivideOnce);
  // Once the numbers that scales and zero points are have met the integers.
  bool has_copies = runner.run(Pass::kIntegerProducts);
  has_copies |= runner.run(Pass::kGroupProducts);
  // No pass but cse sees what these copy or make bytes of: equal ones become one. Filters that are
  // transformed are not packed.
  has_copies |= runner.run(Pass::kWinograd);
  has_copies |= runner.run(Pass::kPackOperands);
  if (has_copies) runner.run(Pass::kCse);
  // Packs have rows of their own.
  runner.run(Pass::kSpreadRows);
  // Once no pass rewrites pads: the strides would be lost.
  runner.run(Pass::kLayPads);
  // Last: the passes above leave the operands of what they replaced.
  runner.run(Pass::kDce);
}

}  // namespace mlcc::graph
