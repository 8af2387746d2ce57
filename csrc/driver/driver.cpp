#include "driver/driver.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "driver/choice.h"
#include "driver/dump.h"
#include "driver/kernel_plan.h"
#include "driver/kernels.h"
#include "driver/plan.h"
#include "driver/reference.h"
#include "driver/session.h"
#include "driver/verdicts.h"
#include "driver/verifying_kernel.h"
#include "fusion/fusion.h"
#include "fusion/in_place.h"
#include "graph/convolution.h"
#include "graph/index_map.h"
#include "graph/inverse_copy.h"
#include "graph/loop_invariants.h"
#include "graph/passes/attention/attention.h"
#include "graph/passes/attention/attention_gradients.h"
#include "graph/passes/contractions/contractions.h"
#include "graph/passes/pipeline.h"
#include "graph/static_values.h"
#include "graph/text.h"
#include "runtime/plan_memory.h"
#include "runtime/trial.h"
#include "support/logging.h"
#include "types/device.h"

namespace mlcc::driver {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// A node that does arithmetic or moves data: everything but index maps and size bookkeeping.
bool counts_as_work(const graph::Node& node) {
  return !graph::is_single_index_map(node.op()) && node.op() != graph::Op::kSizeResult &&
         node.op() != graph::Op::kSizeValue && node.op() != graph::Op::kFull;
}

bool is_contraction_call(const graph::Node& node) {
  return graph::is_product_call(node) || graph::is_convolution_call(node) ||
         graph::is_convolution_gradient_call(node) || graph::is_attention_call(node) ||
         graph::is_attention_gradient_call(node);
}

// Stands for code that goes into a file for another machine.
class ForeignKernel final : public runtime::Kernel {
 public:
  ForeignKernel(std::string name, int num_phases) : Kernel(std::move(name)), phases_(num_phases) {}
  int num_phases() const override { return phases_; }
  runtime::CheckFailure run(const runtime::KernelArgs&, std::span<const int64_t>,
                            const runtime::LaunchContext&) const override {
    MLCC_UNREACHABLE("kernel ", name(), " is another machine's");
  }

 private:
  const int phases_;
};

class Compiler {
 public:
  // `is_optimized`: passes have run over the graph, and what could be kept is cut out of it.
  Compiler(std::shared_ptr<graph::Graph> graph, const Options& options, const Host* host,
           bool is_optimized = false)
      : graph_(std::move(graph)), options_(options), host_(host), is_optimized_(is_optimized),
        dump_(options, graph_->name()) {}

  Compilation compile_for_file(bool with_recipes) {
    is_foreign_ = !cpu_backend(options_).cannot_run.empty();
    keeps_recipes_ = with_recipes;
    Compilation result = compile();
    result.recipes = std::move(recipes_in_file_);
    return result;
  }

  Compilation compile() {
    const Clock::time_point start = Clock::now();
    Compilation result;
    result.graph_text = graph::print(*graph_);
    log_debug(LogChannel::kGraph, result.graph_text);
    dump_.write("graph", "input", result.graph_text);
    graph::verify(*graph_);
    graph_->drop_promises(graph::is_written);  // what the next call will not find again
    std::vector<runtime::KeptInput> kept;
    if (!is_optimized_) {
      graph::run_pipeline(*graph_, pass_options());
      optimize_bodies(*graph_);
      if (!options_.strict) graph::verify(*graph_);
      kept = compile_kept(result.stats);
    }
    dump_.write("graph", "fused", graph::print(*graph_));
    const CompiledRegions regions = compile_regions(result.stats);
    Candidate chosen = choose(result.graph_text, regions);
    if (!is_trial_) log_kernels(chosen.plan);
    count(chosen.plan.fusion, result.stats);
    const References references = make_references(chosen.plan);
    runtime::ExecutablePlan plan = plan_executable(*graph_, chosen.plan, regions);
    plan.kept = std::move(kept);
    plan.promises = promises();
    if (!plan.promises.empty()) plan.without_promises = general(result.graph_text);
    result.stats.live_bytes = most_live_bytes(plan);
    compile_kernels(chosen);
    result.stats.compiled += chosen.compiled;
    result.stats.memory_hits += chosen.memory_hits;
    result.stats.disk_hits += chosen.disk_hits;
    for (size_t i = 0; i < references.size(); ++i)
      chosen.code[i] = verified(chosen, i, references[i]);
    result.executable =
        std::make_shared<runtime::Executable>(std::move(plan), code_in_order(chosen));
    result.fusion_refusals = std::move(chosen.plan.fusion.reasons);
    result.stats.seconds = seconds_since(start);
    if (!is_trial_) report(result.stats);
    return result;
  }

 private:
  // A plan, and its kernels as far as they are compiled.
  struct Candidate {
    Way way = Way::kDefault;
    KernelPlan plan;
    std::vector<runtime::KernelPtr> code;  // per kernel of the plan; empty: not compiled yet
    int64_t compiled = 0, memory_hits = 0, disk_hits = 0;
  };

  graph::PipelineOptions pass_options() {
    graph::PipelineOptions passes;
    passes.bisect = options_.bisect;
    passes.is_code_faster = [this](graph::Pass pass, const graph::Graph& graph,
                                   const graph::Node& call,
                                   bool guess) { return is_code_faster(pass, graph, call, guess); };
    if (options_.contractions) passes.tiles = tile_options(options_);
    passes.has_library = options_.library;
    passes.narrows_products = options_.matmul_precision == "medium";
    passes.quantizes_rows = options_.activations == "int8";
    passes.on_no_match = [this](std::string_view pass, const graph::Node& node,
                                std::string_view reason) {
      if (!is_contraction_call(node)) return;
      // Which looks at what another pass has left.
      if (pass == "row_sums")
        refusals_.emplace(node.extern_call().name, reason);
      else
        refusals_[node.extern_call().name] = reason;
    };
    passes.verify = options_.strict;  // takes too long for every start
    passes.dump = [this](std::string_view pass, const graph::Graph& graph) {
      if (dump_.wants("graph")) dump_.write("graph", pass, graph::print(graph));
    };
    return passes;
  }

  // -- calls and code for them, where passes are in doubt

  bool is_code_faster(graph::Pass pass, const graph::Graph& graph, const graph::Node& call,
                      bool guess) {
    if (is_trial_) return code_of_ == pass;
    if (!options_.prefer.empty()) return options_.prefer == "code";
    if (host_ == nullptr || !options_.measure) return guess;
    if (!choice_)
      choice_.emplace(
          options_, *host_,
          [this](std::unique_ptr<graph::Graph> alone, std::optional<graph::Pass> code_of) {
            return compile_trial(std::move(alone), code_of);
          });
    return choice_->is_code_faster(pass, graph, call, guess);
  }

  std::shared_ptr<const runtime::Executable>
  compile_trial(std::unique_ptr<graph::Graph> alone, std::optional<graph::Pass> code_of) const {
    Options quiet = options_;
    quiet.dump.clear();
    quiet.verify = "off";
    quiet.weights = "keep";
    Compiler compiler(std::move(alone), quiet, nullptr);
    compiler.is_trial_ = true;
    compiler.code_of_ = code_of;
    return compiler.compile().executable;
  }

  // -- the plan: the default, or another one where running both tells that it is faster here

  Candidate candidate(Way way) const { return {way, plan_kernels(*graph_, options_, way)}; }

  Candidate choose(const std::string& graph_text, const CompiledRegions& regions) {
    Candidate standard = candidate(Way::kDefault);
    if (host_ == nullptr || !options_.measure) return standard;
    const std::vector<Way> ways = doubtful_ways(standard.plan, options_);
    if (ways.empty()) return standard;
    std::map<Way, Candidate> tried;
    const Hash128 key =
        verdict_key(graph_text, cpu_backend(options_).backend->target(), host_->threads, options_);
    const std::string word = verdict_of(key, options_, [&] {
      Verdict verdict;
      const Way best = measure(standard, ways, regions, tried, verdict.figures);
      verdict.word = way_name(best);
      return verdict;
    });
    for (const Way way : ways) {
      if (word != way_name(way)) continue;
      const auto found = tried.find(way);
      return found != tried.end() ? std::move(found->second) : candidate(way);
    }
    return standard;
  }

  // The fastest way. What is not faster by a margin that measuring again would confirm is none.
  Way measure(Candidate& standard, const std::vector<Way>& ways, const CompiledRegions& regions,
              std::map<Way, Candidate>& tried, std::string& figures) {
    static constexpr double kMargin = 1.05;  // times as fast, in three quarters of the pairs
    const auto hint = [this](std::string_view name) { return graph_->size_hint(name); };
    Way best = Way::kDefault;
    double best_ratio = 1;
    for (const Way way : ways) {
      Candidate& other = tried[way] = candidate(way);
      const Result<runtime::TrialResult> result = runtime::try_both(
          contender(standard, regions), contender(other, regions), hint, host_->parallel_for);
      if (!result) {
        figures += detail::join(way_name(way), ": not measured: ", result.reason(), "\n");
        continue;
      }
      figures += detail::join(way_name(way), ": ", result->second_seconds * 1e6, " us, default ",
                              result->first_seconds * 1e6, " us, ratio ", result->ratio,
                              ", lower quartile ", result->low_ratio, "\n");
      if (result->low_ratio < kMargin || result->ratio <= best_ratio) continue;
      best = way;
      best_ratio = result->ratio;
    }
    return best;
  }

  runtime::Contender contender(Candidate& candidate, const CompiledRegions& regions) {
    compile_kernels(candidate);
    return {plan_executable(*graph_, candidate.plan, regions), code_in_order(candidate)};
  }

  static std::vector<runtime::KernelPtr> code_in_order(const Candidate& candidate) {
    std::vector<runtime::KernelPtr> in_order;
    for (const fusion::Unit& unit : candidate.plan.fusion.order)
      if (unit.group >= 0) in_order.push_back(candidate.code[unit.group]);
    return in_order;
  }

  void count(const fusion::FusionPlan& fusion, CompileStats& stats) const {
    for (const graph::Node* node : graph_->nodes()) {
      if (!counts_as_work(*node)) continue;
      ++stats.nodes;
      if (node->op() == graph::Op::kExtern && node->extern_call().regions.empty() &&
          !fusion.replaced.contains(node))
        ++stats.extern_calls;
      else
        ++stats.generated_nodes;
    }
    stats.replaced_calls += static_cast<int64_t>(fusion.replaced.size());
    stats.kernels += static_cast<int64_t>(fusion.groups.size());
  }

  int64_t most_live_bytes(const runtime::ExecutablePlan& plan) const {
    if (!graph_->symbols().empty()) return 0;
    const std::vector<int64_t> live =
        runtime::live_bytes(plan, [](std::string_view name) -> int64_t {
          MLCC_UNREACHABLE("symbol ", name, " in a graph without symbols");
        });
    return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  }

  // Before this graph's values are kept: what the rounds of a scan have in common is among them.
  void optimize_bodies(graph::Graph& graph) {
    for (graph::Node* node : graph.nodes()) {
      if (!graph::is_scan(*node)) continue;
      graph::Graph& body = *node->extern_call().regions[0];
      graph::run_pipeline(body, pass_options());
      optimize_bodies(body);
      graph::hoist_loop_invariants(graph, node);
    }
  }

  // Each as a graph of its own; what they did counts for the whole.
  CompiledRegions compile_regions(CompileStats& stats) const {
    CompiledRegions regions;
    for (const graph::Node* node : graph_->nodes()) {
      if (node->op() != graph::Op::kExtern) continue;
      for (const auto& region : node->extern_call().regions) {
        Compiler compiler(region, options_, host_, graph::is_scan(*node));
        compiler.refusals_ = refusals_;
        const Compilation inner = compiler.compile();
        regions[node].push_back(inner.executable);
        add(inner.stats, stats);
        stats.kernels += inner.stats.kernels;
        stats.replaced_calls += inner.stats.replaced_calls;
      }
    }
    return regions;
  }

  static void add(const CompileStats& inner, CompileStats& stats) {
    stats.nodes += inner.nodes;
    stats.generated_nodes += inner.generated_nodes;
    stats.compiled += inner.compiled;
    stats.memory_hits += inner.memory_hits;
    stats.disk_hits += inner.disk_hits;
    stats.extern_calls += inner.extern_calls;
  }

  // -- kept values: each a graph of its own, which runs when a static input changed. Not measured,
  // since it seldom runs.

  std::vector<runtime::KeptInput> compile_kept(CompileStats& stats) {
    if (!options_.pack_weights) return {};
    std::vector<graph::StaticCone> cones = graph::cut_static_values(*graph_);
    if (cones.empty()) return {};
    graph::verify(*graph_);
    const size_t first = graph_->inputs().size() - cones.size();
    struct Recipe {
      std::shared_ptr<const runtime::Executable> executable, inverse, in_file;
    };
    std::map<std::string, Recipe> recipes;  // by text
    std::vector<runtime::KeptInput> kept;
    for (graph::StaticCone& cone : cones) {
      const std::string text = graph::print(*cone.graph);
      Recipe& recipe = recipes[text];
      if (recipe.executable == nullptr) {
        std::unique_ptr<graph::Graph> inverse =
            options_.weights == "steal" ? graph::inverse_of_copy(*cone.graph) : nullptr;
        recipe.executable = compile_recipe(std::move(cone.graph), stats);
        if (keeps_recipes_ && is_foreign_)
          recipe.in_file = Compiler(graph::parse_graph(text), options_, nullptr)
                               .compile_for_file(false)
                               .executable;
        else
          recipe.in_file = recipe.executable;
        if (inverse != nullptr) recipe.inverse = compile_recipe(std::move(inverse), stats);
      }
      const size_t input = first + kept.size();
      const std::string label =
          detail::join("%", graph_->inputs()[input]->name(), " of ", graph_->name());
      kept.push_back({static_cast<runtime::Slot>(input),
                      recipe_key(text),
                      recipe.executable,
                      {cone.inputs.begin(), cone.inputs.end()},
                      label,
                      reads_all_sources(),
                      recipe.inverse});
      if (keeps_recipes_) recipes_in_file_.push_back(recipe.in_file);
      log_debug(LogChannel::kCache, "kept value ", label, ":\n", text);
    }
    stats.kept += static_cast<int64_t>(kept.size());
    if (!is_trial_)
      log(LogChannel::kCache, "graph ", graph_->name(), ": ", kept.size(),
          " values of static inputs are kept, by ", recipes.size(), " recipes");
    return kept;
  }

  std::shared_ptr<const runtime::Executable> compile_recipe(std::unique_ptr<graph::Graph> recipe,
                                                            CompileStats& stats) const {
    Options options = options_;
    if (is_foreign_) options.cpu.clear();  // what is kept is computed here
    Compiler compiler(std::move(recipe), options, nullptr);
    compiler.is_trial_ = is_trial_;
    const Compilation inner = compiler.compile();
    add(inner.stats, stats);
    return inner.executable;
  }

  std::vector<runtime::Promise> promises() const {
    std::vector<runtime::Promise> found;
    for (size_t i = 0; i < graph_->inputs().size(); ++i)
      if (const auto& range = graph_->inputs()[i]->range())
        found.push_back({static_cast<runtime::Slot>(i), *range});
    return found;
  }

  // For inputs that are not what was promised of them.
  std::function<std::shared_ptr<const runtime::Executable>()> general(std::string text) const {
    return [text = std::move(text), options = options_] {
      std::unique_ptr<graph::Graph> graph = graph::parse_graph(text);
      graph->drop_promises([](const graph::Value&) { return true; });
      return driver::compile(std::move(graph), options).executable;
    };
  }

  // Within this process, which has one compiler for each option.
  Hash128 recipe_key(const std::string& text) const {
    return FieldHasher()
        .add("kept")
        .add(text)
        .add(options_.code_fingerprint())
        .add(static_cast<int64_t>(reads_all_sources()))
        .finish();
  }

  bool reads_all_sources() const {
    return parse_verification(options_.verify) == Verification::kAlways;
  }

  // -- what is told of the plan

  void log_kernels(const KernelPlan& plan) {
    for (const std::string& reason : plan.fusion.reasons) log_debug(LogChannel::kFusion, reason);
    for (size_t i = 0; i < plan.kernels.size(); ++i) {
      const lower::LoweredKernel& lowered = plan.kernels[i].lowered;
      const fusion::Group& group = plan.fusion.groups[i];
      log(LogChannel::kFusion, "kernel ", i, ": ", lowered.label, " over [", domain_text(group),
          "], ideal ", group.ideal_bytes.str(), " bytes, ", lowered.schedule.str());
      dump_.write("loop", "kernel" + std::to_string(i), plan.kernels[i].text);
    }
    log_waves(plan.fusion);
    log_copies(plan.fusion);
    log_contraction_calls();
  }

  static std::string domain_text(const fusion::Group& group) {
    std::string text;
    for (size_t d = 0; d < group.domain.size(); ++d)
      text += (d ? ", " : "") + group.domain[d].str() + (group.reduced[d] ? " reduced" : "");
    return text;
  }

  static void log_waves(const fusion::FusionPlan& fusion) {
    std::string wave;
    bool in_turns = false;
    for (const fusion::Unit& unit : fusion.order) {
      if (!unit.beside) log_wave(std::exchange(wave, ""), in_turns);
      wave += (unit.beside ? ", " : "") + std::to_string(unit.group);
      in_turns = unit.in_turns;
    }
    log_wave(wave, in_turns);
  }

  static void log_wave(const std::string& kernels, bool in_turns) {
    if (kernels.find(',') != std::string::npos)
      log(LogChannel::kFusion, in_turns ? "in turns: kernels " : "at the same time: kernels ",
          kernels);
  }

  // Matrix products and convolutions that no kernel computes; once a graph, however many there are.
  void log_contraction_calls() const {
    std::set<std::string> names;
    for (const graph::Node* node : graph_->nodes())
      if (is_contraction_call(*node)) names.insert(node->extern_call().name);
    for (const std::string& name : names) {
      const auto refusal = refusals_.find(name);
      log(LogChannel::kFallback, name, ": ATen call (",
          refusal == refusals_.end() ? "contractions are switched off" : refusal->second, ")");
    }
  }

  // Once a graph, however many there are.
  void log_copies(const fusion::FusionPlan& fusion) const {
    const auto& nodes = graph_->nodes();
    if (std::any_of(nodes.begin(), nodes.end(), [&](const graph::Node* node) {
          return fusion::is_copy_into_first(*node) && !fusion.replaced.contains(node);
        }))
      log(LogChannel::kFallback,
          "aten.copy_.default: ATen call (what it writes is read elsewhere or lies otherwise)");
  }

  // -- code

  // The kernels of each device together, unless they are compiled already.
  void compile_kernels(Candidate& candidate) {
    const std::vector<PlannedKernel>& kernels = candidate.plan.kernels;
    if (candidate.code.size() == kernels.size()) return;
    candidate.code.resize(kernels.size());
    if (is_foreign_) {
      for (size_t i = 0; i < kernels.size(); ++i)
        candidate.code[i] = std::make_shared<ForeignKernel>(
            kernels[i].lowered.label, static_cast<int>(kernels[i].lowered.phases.size()));
      return;
    }
    std::map<Device, std::vector<size_t>> by_device;
    for (size_t i = 0; i < kernels.size(); ++i)
      by_device[candidate.plan.fusion.groups[i].device].push_back(i);
    for (const auto& [device, indices] : by_device) {
      std::vector<KernelRequest> requests;
      for (const size_t i : indices) {
        const PlannedKernel& kernel = kernels[i];
        requests.push_back({kernel.text, kernel.key, static_cast<int>(kernel.lowered.phases.size()),
                            kernel.lowered.label, to_kernel_errors(kernel.lowered.kernel.errors)});
      }
      const std::vector<Result<runtime::FoundKernel>> found =
          find_kernels(requests, backend_for(options_, device), options_, dump_);
      for (size_t k = 0; k < indices.size(); ++k) {
        MLCC_CHECK(found[k], "kernel ", requests[k].label, ": ", found[k].reason(),
                   detail::kWhileCompiling, requests[k].text);
        candidate.code[indices[k]] = found[k]->kernel;
        ++counter_of(found[k]->origin, candidate);
      }
    }
  }

  static int64_t& counter_of(runtime::KernelOrigin origin, Candidate& candidate) {
    switch (origin) {
    case runtime::KernelOrigin::kMemory: return candidate.memory_hits;
    case runtime::KernelOrigin::kDisk: return candidate.disk_hits;
    case runtime::KernelOrigin::kCompiled: return candidate.compiled;
    }
    MLCC_UNREACHABLE("kernel origin ", static_cast<int>(origin));
  }

  // -- verification, if it is switched on: a reference for each kernel

  struct GroupReference {
    std::shared_ptr<const Reference> reference;
    size_t num_kernel_sizes;
  };
  using References = std::vector<GroupReference>;

  // Launches hand the references' sizes to their kernels too, behind those of the kernel.
  References make_references(KernelPlan& plan) const {
    References references;
    if (parse_verification(options_.verify) == Verification::kOff || plan.kernels.empty())
      return references;
    const std::shared_ptr<const NodeByNode> nodes = run_node_by_node(graph_);
    for (size_t i = 0; i < plan.kernels.size(); ++i) {
      std::vector<SymExpr>& sizes = plan.kernels[i].lowered.sizes;
      references.push_back(
          {std::make_shared<const Reference>(nodes, plan.fusion.groups[i]), sizes.size()});
      for (const std::string& symbol : references.back().reference->symbols())
        sizes.push_back(SymExpr::symbol(symbol));
    }
    return references;
  }

  runtime::KernelPtr verified(const Candidate& candidate, size_t group,
                              const GroupReference& reference) const {
    const runtime::KernelPtr& kernel = candidate.code[group];
    const PlannedKernel& planned = candidate.plan.kernels[group];
    VerifiedLaunch launch{kernel,
                          planned.lowered.label,
                          planned.text,
                          planned.lowered.buffers,
                          candidate.plan.fusion.groups[group].in_place,
                          reference.num_kernel_sizes,
                          reference.reference};
    const std::string reason = why_not_verified(launch, options_);
    if (reason.empty()) return std::make_shared<VerifyingKernel>(std::move(launch), options_);
    log(LogChannel::kKernels, "kernel ", planned.lowered.label, " is not verified: ", reason);
    return kernel;
  }

  void report(const CompileStats& stats) const {
    log(LogChannel::kGraph, "graph ", graph_->name(), ": ", stats.nodes, " nodes, ",
        stats.generated_nodes, " of them in ", stats.kernels, " kernels, ", stats.extern_calls,
        " calls of ATen; ", stats.compiled, " kernels compiled, ", stats.memory_hits,
        " from memory, ", stats.disk_hits, " from disk, ",
        static_cast<int64_t>(stats.seconds * 1e3), " ms",
        stats.live_bytes > 0 ? detail::join("; values of ", stats.live_bytes, " bytes at a time")
                             : "");
  }

  std::shared_ptr<graph::Graph> graph_;
  const Options& options_;
  const Host* const host_;  // null: nothing is measured
  const bool is_optimized_;
  // Of a graph of one call that is run to see how long it takes: the pass that makes code of it.
  bool is_trial_ = false;
  std::optional<graph::Pass> code_of_;
  bool is_foreign_ = false;     // this machine does not run the code
  bool keeps_recipes_ = false;  // for a file
  std::vector<std::shared_ptr<const runtime::Executable>> recipes_in_file_;  // of each kept input
  std::optional<Choice> choice_;
  Dump dump_;
  std::map<std::string, std::string> refusals_;  // of contractions, by call: why it stays one
};

void check(const Options& options) {
  MLCC_USER_CHECK(options.prefer.empty() || options.prefer == "code" || options.prefer == "call",
                  "option prefer: found '", options.prefer, "', expected code or call");
}

}  // namespace

Compilation compile(std::unique_ptr<graph::Graph> graph, const Options& options, const Host* host) {
  check(options);
  apply_memory_options(options);
  return Compiler(std::move(graph), options, host).compile();
}

Compilation compile_for_file(std::unique_ptr<graph::Graph> graph, const Options& options,
                             bool with_recipes) {
  check(options);
  return Compiler(std::move(graph), options, nullptr).compile_for_file(with_recipes);
}

}  // namespace mlcc::driver
