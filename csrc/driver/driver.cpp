#include "driver/driver.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <thread>
#include <utility>

#include "driver/dump.h"
#include "driver/kernels.h"
#include "driver/plan.h"
#include "driver/reference.h"
#include "driver/session.h"
#include "driver/verifying_kernel.h"
#include "fusion/fusion.h"
#include "fusion/in_place.h"
#include "graph/index_map.h"
#include "graph/passes/pipeline.h"
#include "graph/text.h"
#include "loop/text.h"
#include "lower/formula.h"
#include "lower/in_place.h"
#include "lower/lower.h"
#include "runtime/plan_memory.h"
#include "schedule/host_caches.h"
#include "schedule/machine.h"
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

// What schedules for a target are made for.
schedule::Machine machine_of(const codegen::Target& target, const Options& options) {
  if (target.backend == "cuda") return schedule::gpu_machine(target.cpu);
  const int64_t streaming_bytes = options.stream_mb < 0 ? schedule::last_level_cache_bytes() / 4 * 3
                                                        : bytes_of_mebibytes(options.stream_mb);
  return {.vector_bits = target.vector_bits,
          .threads = std::max<int64_t>(1, std::thread::hardware_concurrency()),
          .second_level_bytes = schedule::second_level_cache_bytes(),
          .streaming_bytes = streaming_bytes};
}

fusion::RowLimits row_limits(const schedule::Machine& machine) {
  if (!machine.is_gpu) return {};
  fusion::RowLimits limits;
  limits.block_bytes = machine.shared_bytes_per_block;
  limits.enough_rows = machine.multiprocessors;
  return limits;
}

class Compiler {
 public:
  Compiler(std::shared_ptr<graph::Graph> graph, const Options& options)
      : graph_(std::move(graph)), options_(options), dump_(options, graph_->name()) {}

  Compilation compile() {
    const Clock::time_point start = Clock::now();
    Compilation result;
    result.graph_text = graph::print(*graph_);
    log_debug(LogChannel::kGraph, result.graph_text);
    dump_.write("graph", "input", result.graph_text);
    graph::verify(*graph_);
    graph::run_pipeline(*graph_, pass_options());
    if (!options_.strict) graph::verify(*graph_);
    dump_.write("graph", "fused", graph::print(*graph_));
    fusion_ = fusion::plan_fusion(*graph_, fusion_options());
    find_in_place_writes();
    if (!fusion_.groups.empty()) lower_groups();
    log_waves();
    log_copies();
    count(result.stats);
    const CompiledRegions regions = compile_regions(result.stats);
    const References references = make_references();
    runtime::ExecutablePlan plan = plan_executable(*graph_, fusion_, kernels_, regions);
    result.stats.live_bytes = most_live_bytes(plan);
    std::vector<runtime::KernelPtr> launched = compile_kernels(result.stats);
    for (size_t i = 0; i < references.size(); ++i)
      launched[i] = verified(launched[i], i, references[i]);
    std::vector<runtime::KernelPtr> in_order;
    for (const fusion::Unit& unit : fusion_.order)
      if (unit.group >= 0) in_order.push_back(launched[unit.group]);
    result.executable = std::make_shared<runtime::Executable>(std::move(plan), std::move(in_order));
    result.fusion_refusals = std::move(fusion_.reasons);
    result.stats.seconds = seconds_since(start);
    report(result.stats);
    return result;
  }

 private:
  graph::PipelineOptions pass_options() {
    graph::PipelineOptions passes;
    passes.bisect = options_.bisect;
    passes.verify = options_.strict;  // a quarter of a warm start
    passes.dump = [this](std::string_view pass, const graph::Graph& graph) {
      if (dump_.wants("graph")) dump_.write("graph", pass, graph::print(graph));
    };
    return passes;
  }

  const codegen::Target& target_for(const Device& device) const {
    return backend_for(options_, device).backend->target();
  }

  fusion::FusionOptions fusion_options() const {
    fusion::FusionOptions options;
    options.row_limits = [this](const Device& device) {
      return row_limits(machine_of(target_for(device), options_));
    };
    using Key = std::pair<graph::Op, DType>;
    options.ops_of = [known = std::map<Key, int64_t>()](const graph::Node& node) mutable {
      const std::vector<graph::Value*>& operands = node.operands();
      const DType dtype = operands.empty() ? DType::kF32 : operands.back()->type().dtype;
      const auto [found, is_new] = known.try_emplace({node.op(), dtype});
      if (is_new) {
        loop::Arena arena;
        found->second = lower::Formulas(arena).cost(node);
      }
      return found->second;
    };
    // What alone would not keep all threads busy, and so much of it that together they are.
    const int64_t all_threads =
        schedule::kGrainPoints * std::max<int64_t>(1, std::thread::hardware_concurrency());
    options.waves = {.of_kernel = 2 * all_threads, .of_wave = 8 * all_threads};
    return options;
  }

  void count(CompileStats& stats) const {
    for (const graph::Node* node : graph_->nodes()) {
      if (!counts_as_work(*node)) continue;
      ++stats.nodes;
      if (node->op() == graph::Op::kExtern && node->extern_call().regions.empty() &&
          !fusion_.replaced.contains(node))
        ++stats.extern_calls;
      else
        ++stats.generated_nodes;
    }
    stats.replaced_calls = static_cast<int64_t>(fusion_.replaced.size());
    stats.kernels = static_cast<int64_t>(fusion_.groups.size());
    for (const std::string& reason : fusion_.reasons) log_debug(LogChannel::kFusion, reason);
  }

  int64_t most_live_bytes(const runtime::ExecutablePlan& plan) const {
    if (!graph_->symbols().empty()) return 0;
    const std::vector<int64_t> live =
        runtime::live_bytes(plan, [](std::string_view name) -> int64_t {
          MLCC_UNREACHABLE("symbol ", name, " in a graph without symbols");
        });
    return live.empty() ? 0 : *std::max_element(live.begin(), live.end());
  }

  // Each as a graph of its own; what they did counts for the whole.
  CompiledRegions compile_regions(CompileStats& stats) const {
    CompiledRegions regions;
    for (const graph::Node* node : graph_->nodes()) {
      if (node->op() != graph::Op::kExtern) continue;
      for (const auto& region : node->extern_call().regions) {
        const Compilation inner = Compiler(region, options_).compile();
        regions[node].push_back(inner.executable);
        stats.nodes += inner.stats.nodes;
        stats.generated_nodes += inner.stats.generated_nodes;
        stats.kernels += inner.stats.kernels;
        stats.compiled += inner.stats.compiled;
        stats.memory_hits += inner.stats.memory_hits;
        stats.disk_hits += inner.stats.disk_hits;
        stats.extern_calls += inner.stats.extern_calls;
        stats.replaced_calls += inner.stats.replaced_calls;
      }
    }
    return regions;
  }

  void find_in_place_writes() {
    for (const fusion::InPlaceWrite& write : fusion::find_in_place_writes(*graph_, fusion_)) {
      fusion_.groups[write.group].in_place[write.result] = write.input;
      fusion_.replaced[write.copy] = write.group;
    }
  }

  void log_waves() const {
    std::string wave;
    for (const fusion::Unit& unit : fusion_.order) {
      if (!unit.beside) log_wave(std::exchange(wave, ""));
      wave += (unit.beside ? ", " : "") + std::to_string(unit.group);
    }
    log_wave(wave);
  }

  static void log_wave(const std::string& kernels) {
    if (kernels.find(',') != std::string::npos)
      log(LogChannel::kFusion, "at the same time: kernels ", kernels);
  }

  // Once a graph, however many there are.
  void log_copies() const {
    const auto& nodes = graph_->nodes();
    if (std::any_of(nodes.begin(), nodes.end(), [this](const graph::Node* node) {
          return fusion::is_copy_into_first(*node) && !fusion_.replaced.contains(node);
        }))
      log(LogChannel::kFallback,
          "aten.copy_.default: ATen call (what it writes is read elsewhere or lies otherwise)");
  }

  // In place where that is safe.
  lower::LoweredKernel lower_group(fusion::Group& group, const schedule::Machine& machine,
                                   loop::Arena& arena) {
    lower::LoweredKernel lowered = lower::lower_group(*graph_, fusion_, group, machine, arena);
    if (group.in_place.empty() || lower::is_safe_in_place(group, lowered)) return lowered;
    const int index = static_cast<int>(&group - fusion_.groups.data());
    std::erase_if(fusion_.replaced, [&](const auto& entry) { return entry.second == index; });
    group.in_place.clear();
    return lower::lower_group(*graph_, fusion_, group, machine, arena);
  }

  void lower_groups() {
    for (fusion::Group& group : fusion_.groups) {
      const codegen::Target& target = target_for(group.device);
      const schedule::Machine machine = machine_of(target, options_);
      loop::Arena arena;
      PlannedKernel planned;
      planned.lowered = lower_group(group, machine, arena);
      planned.text = loop::print(planned.lowered.kernel);
      planned.key = kernel_key(planned.text, target, options_);
      log(LogChannel::kFusion, "kernel ", kernels_.size(), ": ", planned.lowered.label, " over [",
          domain_text(group), "], ideal ", group.ideal_bytes.str(), " bytes, ",
          planned.lowered.schedule.str());
      dump_.write("loop", "kernel" + std::to_string(kernels_.size()), planned.text);
      planned.lowered.kernel = {planned.lowered.kernel.name,
                                {},
                                {},
                                {},
                                planned.lowered.kernel.errors};  // the arena ends here
      kernels_.push_back(std::move(planned));
    }
  }

  static std::string domain_text(const fusion::Group& group) {
    std::string text;
    for (size_t d = 0; d < group.domain.size(); ++d)
      text += (d ? ", " : "") + group.domain[d].str() + (group.reduced[d] ? " reduced" : "");
    return text;
  }

  // The kernels of each device together.
  std::vector<runtime::KernelPtr> compile_kernels(CompileStats& stats) {
    std::vector<runtime::KernelPtr> launched(kernels_.size());
    std::map<Device, std::vector<size_t>> by_device;
    for (size_t i = 0; i < kernels_.size(); ++i) by_device[fusion_.groups[i].device].push_back(i);
    for (const auto& [device, indices] : by_device) {
      std::vector<KernelRequest> requests;
      for (const size_t i : indices) {
        const PlannedKernel& kernel = kernels_[i];
        requests.push_back({kernel.text, kernel.key, static_cast<int>(kernel.lowered.phases.size()),
                            kernel.lowered.label, to_kernel_errors(kernel.lowered.kernel.errors)});
      }
      const std::vector<Result<runtime::FoundKernel>> found =
          find_kernels(requests, backend_for(options_, device), options_, dump_);
      for (size_t k = 0; k < indices.size(); ++k) {
        MLCC_CHECK(found[k], "kernel ", requests[k].label, ": ", found[k].reason(),
                   detail::kWhileCompiling, requests[k].text);
        launched[indices[k]] = found[k]->kernel;
        ++counter_of(found[k]->origin, stats);
      }
    }
    return launched;
  }

  // -- verification, if it is switched on: a reference for each kernel

  struct GroupReference {
    std::shared_ptr<const Reference> reference;
    size_t num_kernel_sizes;
  };
  using References = std::vector<GroupReference>;

  // Launches hand the references' sizes to their kernels too, behind those of the kernel.
  References make_references() {
    References references;
    if (parse_verification(options_.verify) == Verification::kOff || kernels_.empty())
      return references;
    const std::shared_ptr<const NodeByNode> nodes = run_node_by_node(graph_);
    for (size_t i = 0; i < kernels_.size(); ++i) {
      std::vector<SymExpr>& sizes = kernels_[i].lowered.sizes;
      references.push_back(
          {std::make_shared<const Reference>(nodes, fusion_.groups[i]), sizes.size()});
      for (const std::string& symbol : references.back().reference->symbols())
        sizes.push_back(SymExpr::symbol(symbol));
    }
    return references;
  }

  runtime::KernelPtr verified(const runtime::KernelPtr& kernel, size_t group,
                              const GroupReference& reference) const {
    const PlannedKernel& planned = kernels_[group];
    VerifiedLaunch launch{kernel,
                          planned.lowered.label,
                          planned.text,
                          planned.lowered.buffers,
                          fusion_.groups[group].in_place,
                          reference.num_kernel_sizes,
                          reference.reference};
    const std::string reason = why_not_verified(launch, options_);
    if (reason.empty()) return std::make_shared<VerifyingKernel>(std::move(launch), options_);
    log(LogChannel::kKernels, "kernel ", planned.lowered.label, " is not verified: ", reason);
    return kernel;
  }

  static int64_t& counter_of(runtime::KernelOrigin origin, CompileStats& stats) {
    switch (origin) {
    case runtime::KernelOrigin::kMemory: return stats.memory_hits;
    case runtime::KernelOrigin::kDisk: return stats.disk_hits;
    case runtime::KernelOrigin::kCompiled: return stats.compiled;
    }
    MLCC_UNREACHABLE("kernel origin ", static_cast<int>(origin));
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
  Dump dump_;
  fusion::FusionPlan fusion_;
  std::vector<PlannedKernel> kernels_;
};

}  // namespace

Compilation compile(std::unique_ptr<graph::Graph> graph, const Options& options) {
  apply_memory_options(options);
  return Compiler(std::move(graph), options).compile();
}

}  // namespace mlcc::driver
