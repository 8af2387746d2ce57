#include "driver/driver.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <mutex>
#include <thread>

#include "driver/dump.h"
#include "driver/plan.h"
#include "driver/session.h"
#include "fusion/fusion.h"
#include "graph/index_map.h"
#include "graph/passes/pipeline.h"
#include "graph/text.h"
#include "loop/text.h"
#include "lower/lower.h"
#include "support/logging.h"

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

Hash128 kernel_key(const std::string& text, const codegen::Target& target, const Options& options) {
  return FieldHasher()
      .add("kernel")
      .add(text)
      .add(target.str())
      .add(options.code_fingerprint())
      .finish();
}

class Compiler {
 public:
  Compiler(std::unique_ptr<graph::Graph> graph, const Options& options)
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
    fusion_ = fusion::plan_fusion(*graph_, {});
    count(result.stats);
    if (!fusion_.groups.empty()) lower_groups();
    runtime::ExecutablePlan plan = plan_executable(*graph_, fusion_, kernels_);
    std::vector<runtime::KernelPtr> launched = compile_kernels(result.stats);
    std::vector<runtime::KernelPtr> in_order;
    for (const fusion::Unit& unit : fusion_.order)
      if (unit.group >= 0) in_order.push_back(launched[unit.group]);
    result.executable = std::make_shared<runtime::Executable>(std::move(plan), std::move(in_order));
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

  void count(CompileStats& stats) const {
    for (const graph::Node* node : graph_->nodes()) {
      if (!counts_as_work(*node)) continue;
      ++stats.nodes;
      if (node->op() == graph::Op::kExtern)
        ++stats.extern_calls;
      else
        ++stats.generated_nodes;
    }
    stats.kernels = static_cast<int64_t>(fusion_.groups.size());
    for (const std::string& reason : fusion_.reasons) log_debug(LogChannel::kFusion, reason);
  }

  void lower_groups() {
    const codegen::Target& target = cpu_backend(options_).backend->target();
    const schedule::Machine machine{target.vector_bits};
    for (const fusion::Group& group : fusion_.groups) {
      loop::Arena arena;
      PlannedKernel planned;
      planned.lowered = lower::lower_group(*graph_, fusion_, group, machine, arena);
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

  // Kernels are independent: several threads take them one after the other.
  std::vector<runtime::KernelPtr> compile_kernels(CompileStats& stats) {
    std::vector<runtime::KernelPtr> found(kernels_.size());
    std::atomic<size_t> next{0};
    std::mutex mutex;
    std::exception_ptr failure;
    const auto work = [&] {
      for (size_t i = next++; i < kernels_.size(); i = next++) {
        try {
          const runtime::FoundKernel kernel = find_kernel(kernels_[i]);
          const std::lock_guard<std::mutex> lock(mutex);
          found[i] = kernel.kernel;
          ++(kernel.origin == runtime::KernelOrigin::kCompiled ? stats.compiled
             : kernel.origin == runtime::KernelOrigin::kDisk   ? stats.disk_hits
                                                               : stats.memory_hits);
        } catch (const std::exception&) {
          const std::lock_guard<std::mutex> lock(mutex);
          if (!failure) failure = std::current_exception();
        }
      }
    };
    std::vector<std::thread> threads;
    for (int64_t t = 1; t < num_threads(); ++t) threads.emplace_back(work);
    work();
    for (std::thread& thread : threads) thread.join();
    if (failure) std::rethrow_exception(failure);
    return found;
  }

  int64_t num_threads() const {
    static constexpr int64_t kMostThreads = 8;
    const int64_t cores = std::max<int64_t>(1, std::thread::hardware_concurrency());
    const int64_t wanted = options_.num_compile_threads > 0 ? options_.num_compile_threads
                                                            : std::min(cores, kMostThreads);
    return std::min<int64_t>(wanted, static_cast<int64_t>(kernels_.size()));
  }

  runtime::FoundKernel find_kernel(const PlannedKernel& planned) {
    const CpuBackend& cpu = cpu_backend(options_);
    const auto compile = [&]() -> Result<std::string> {
      const Clock::time_point start = Clock::now();
      codegen::CompileRequest request;
      request.text = planned.text;
      request.want_llvm_text = dump_.wants("llvm");
      request.want_asm_text = dump_.wants("asm");
      Result<codegen::ObjectCode> object = cpu.backend->compile(request);
      if (!object) return unsupported(object.reason());
      log(LogChannel::kKernels, "compiled ", planned.lowered.label, " (",
          planned.key.hex().substr(0, 12), ") in ",
          static_cast<int64_t>(seconds_since(start) * 1e6), " us, ", object->bytes.size(),
          " bytes");
      dump_texts(*object, planned);
      return std::move(object).value().bytes;
    };
    Result<runtime::FoundKernel> kernel = kernel_cache().find_or_compile(
        planned.key, "k", static_cast<int>(planned.lowered.phases.size()), *cpu.loader,
        store(options_).get(), compile);
    MLCC_CHECK(kernel, "kernel ", planned.lowered.label, ": ", kernel.reason(), "\n", planned.text);
    log(LogChannel::kCache, "kernel ", planned.lowered.label, " (", planned.key.hex().substr(0, 12),
        ") ", origin_text(kernel->origin));
    // A dump shows every kernel, also those that need no compiling.
    const bool wants_text = dump_.wants("llvm") || dump_.wants("asm");
    if (wants_text && kernel->origin != runtime::KernelOrigin::kCompiled) (void)compile();
    return *kernel;
  }

  static std::string_view origin_text(runtime::KernelOrigin origin) {
    switch (origin) {
    case runtime::KernelOrigin::kMemory: return "is in memory";
    case runtime::KernelOrigin::kDisk: return "comes from the disk store";
    case runtime::KernelOrigin::kCompiled: return "is new";
    }
    MLCC_UNREACHABLE("kernel origin ", static_cast<int>(origin));
  }

  void dump_texts(const codegen::ObjectCode& object, const PlannedKernel& planned) {
    const std::lock_guard<std::mutex> lock(dump_mutex_);
    dump_.write("llvm", planned.key.hex().substr(0, 12), object.llvm_text);
    dump_.write("asm", planned.key.hex().substr(0, 12), object.asm_text);
  }

  void report(const CompileStats& stats) const {
    log(LogChannel::kGraph, "graph ", graph_->name(), ": ", stats.nodes, " nodes, ",
        stats.generated_nodes, " of them in ", stats.kernels, " kernels, ", stats.extern_calls,
        " calls of ATen; ", stats.compiled, " kernels compiled, ", stats.memory_hits,
        " from memory, ", stats.disk_hits, " from disk, ",
        static_cast<int64_t>(stats.seconds * 1e3), " ms");
  }

  std::unique_ptr<graph::Graph> graph_;
  const Options& options_;
  Dump dump_;
  std::mutex dump_mutex_;
  fusion::FusionPlan fusion_;
  std::vector<PlannedKernel> kernels_;
};

}  // namespace

Compilation compile(std::unique_ptr<graph::Graph> graph, const Options& options) {
  return Compiler(std::move(graph), options).compile();
}

}  // namespace mlcc::driver
