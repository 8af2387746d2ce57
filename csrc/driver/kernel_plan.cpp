#include "driver/kernel_plan.h"

#include <algorithm>
#include <map>
#include <thread>
#include <utility>

#include "driver/kernels.h"
#include "driver/session.h"
#include "fusion/in_place.h"
#include "loop/text.h"
#include "lower/contractions/tile_options.h"
#include "lower/element/formula.h"
#include "lower/in_place.h"
#include "schedule/caches.h"
#include "schedule/machine.h"
#include "schedule/schedule.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

// What shapes a plan beside the machine.
// Values of a size that a kernel has in hand, about: two that it reads and one that it writes.
constexpr int64_t kValuesOfKernel = 3;
// Work of a kernel and of a wave, in grains for each thread: a kernel of less alone would not keep
// all threads busy, a wave of so much does.
constexpr int64_t kGrainsOfSmallKernel = 2, kGrainsOfWave = 8;
// Kernels that move at least this share of the last-level cache write past it, in quarters.
constexpr int64_t kQuartersThatStream = 3;

bool has_feature(const codegen::Target& target, std::string_view name) {
  return ("," + target.features + ",").find(detail::join(",+", name, ",")) != std::string::npos;
}

// That kernels of the CPU are cut into parts for.
int64_t kernel_threads(const Options& options) {
  static constexpr int64_t kMostThreads = 4096;  // beyond all machines: a bound for arithmetic
  const int64_t wanted =
      options.num_threads > 0 ? options.num_threads : std::thread::hardware_concurrency();
  return std::clamp<int64_t>(wanted, 1, kMostThreads);
}

// Of a CPU that is named nothing is asked of this machine.
schedule::Caches caches_for(const Options& options, const codegen::Target& target) {
  return options.cpu.empty() ? schedule::host_caches()
                             : schedule::caches_of(options.cpu, target.vector_bits);
}

// What schedules for a target are made for.
schedule::Machine machine_of(const codegen::Target& target, const Options& options) {
  if (target.backend == "cuda") return schedule::gpu_machine(target.cpu);
  const schedule::Caches caches = caches_for(options, target);
  const int64_t streaming_bytes = options.stream_mb < 0
                                      ? caches.last_level_bytes / 4 * kQuartersThatStream
                                      : bytes_of_mebibytes(options.stream_mb);
  const bool is_amd = target.cpu.rfind("znver", 0) == 0;
  return {.vector_bits = target.vector_bits,
          .threads = kernel_threads(options),
          .second_level_bytes = caches.second_level_bytes,
          .dots_bf16 = has_feature(target, "avx512bf16") || has_feature(target, "bf16"),
          .dots_shorts = target.vector_bits > 128,
          .dots_bytes = target.vector_bits > 128 || has_feature(target, "dotprod"),
          .mixes_signs = has_feature(target, "avx512vnni") || has_feature(target, "avxvnni"),
          .multiplies_halves = has_feature(target, "fp16fml"),
          .has_library_of_halves = has_feature(target, "avx512fp16"),
          .multiplies_tiles = has_feature(target, "amx-bf16") && has_feature(target, "amx-int8"),
          .streaming_bytes = streaming_bytes,
          .last_level_bytes = caches.last_level_bytes,
          .has_scarce_loads = !is_amd && target.vector_bits == 512,  // decision 0025
          .transforms_images = options.winograd && options.weights != "steal",
          .widens_weights = options.weights != "steal",
          .prefetches_pages = is_amd};  // decision 0016
}

fusion::RowLimits row_limits(const schedule::Machine& machine) {
  if (!machine.is_gpu) return {};
  fusion::RowLimits limits;
  limits.block_bytes = machine.shared_bytes_per_block;
  limits.enough_rows = machine.multiprocessors;
  return limits;
}

const codegen::Target& target_for(const Device& device, const Options& options) {
  return backend_for(options, device).backend->target();
}

class Planner {
 public:
  Planner(const graph::Graph& graph, const Options& options, Way way)
      : graph_(graph), options_(options), way_(way) {}

  KernelPlan plan() {
    plan_.fusion = fusion::plan_fusion(graph_, fusion_options());
    for (const fusion::InPlaceWrite& write : fusion::find_in_place_writes(graph_, plan_.fusion)) {
      plan_.fusion.groups[write.group].in_place[write.result] = write.input;
      plan_.fusion.replaced[write.copy] = write.group;
    }
    for (fusion::Group& group : plan_.fusion.groups) plan_.kernels.push_back(plan_kernel(group));
    return std::move(plan_);
  }

 private:
  fusion::FusionOptions fusion_options() const {
    fusion::FusionOptions options;
    options.row_limits = [this](const Device& device) {
      return row_limits(machine_of(target_for(device, options_), options_));
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
    if (!options_.join_products) options.max_products = 1;
    options.online = way_ != Way::kPasses;
    options.recompute = way_ != Way::kStores;
    const int64_t all_threads = schedule::kGrainPoints * kernel_threads(options_);
    options.waves = {.of_kernel = kGrainsOfSmallKernel * all_threads,
                     .of_wave = kGrainsOfWave * all_threads,
                     .of_value = second_level_bytes() / kValuesOfKernel};
    return options;
  }

  // Of the CPU; of this machine's where there is no code generator for it.
  int64_t second_level_bytes() const {
    if (options_.cpu.empty()) return schedule::host_caches().second_level_bytes;
    return caches_for(options_, target_for({}, options_)).second_level_bytes;
  }

  PlannedKernel plan_kernel(fusion::Group& group) {
    const codegen::Target& target = target_for(group.device, options_);
    const schedule::Machine machine = machine_of(target, options_);
    loop::Arena arena;
    PlannedKernel planned;
    planned.lowered = lower_group(group, machine, arena);
    loop::Kernel& kernel = planned.lowered.kernel;
    planned.text = loop::print(kernel);
    planned.key = kernel_key(planned.text, target, options_);
    kernel = {kernel.name, {}, {}, {}, kernel.errors};  // the arena ends here
    return planned;
  }

  // In place where that is safe.
  lower::LoweredKernel lower_group(fusion::Group& group, const schedule::Machine& machine,
                                   loop::Arena& arena) {
    fusion::FusionPlan& fusion = plan_.fusion;
    lower::LoweredKernel lowered = lower::lower_group(graph_, fusion, group, machine, arena);
    if (group.in_place.empty() || lower::is_safe_in_place(group, lowered)) return lowered;
    const int index = static_cast<int>(&group - fusion.groups.data());
    std::erase_if(fusion.replaced, [&](const auto& entry) { return entry.second == index; });
    group.in_place.clear();
    return lower::lower_group(graph_, fusion, group, machine, arena);
  }

  const graph::Graph& graph_;
  const Options& options_;
  const Way way_;
  KernelPlan plan_;
};

}  // namespace

graph::TileOptions tile_options(const Options& options) {
  return lower::tile_options([&options] { return machine_of(target_for({}, options), options); });
}

std::string_view way_name(Way way) {
  switch (way) {
  case Way::kDefault: return "default";
  case Way::kPasses: return "passes";
  case Way::kStores: return "stores";
  }
  MLCC_UNREACHABLE("way ", static_cast<int>(way));
}

KernelPlan plan_kernels(const graph::Graph& graph, const Options& options, Way way) {
  return Planner(graph, options, way).plan();
}

std::vector<Way> doubtful_ways(const KernelPlan& plan, const Options& options) {
  std::vector<Way> ways;
  if (std::any_of(plan.kernels.begin(), plan.kernels.end(),
                  [](const PlannedKernel& kernel) { return kernel.lowered.is_online; }))
    ways.push_back(Way::kPasses);
  if (plan.fusion.saves_little) ways.push_back(Way::kStores);
  const auto& groups = plan.fusion.groups;
  if (!ways.empty() && std::any_of(groups.begin(), groups.end(), [&](const fusion::Group& group) {
        return target_for(group.device, options).backend == "cuda";
      }))
    ways.clear();
  return ways;
}

}  // namespace mlcc::driver
