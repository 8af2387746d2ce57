// From a graph to the kernels that it becomes, as text: fusion, lowering and keys.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "driver/options.h"
#include "fusion/fusion.h"
#include "graph/graph.h"
#include "graph/passes/options.h"
#include "lower/lower.h"
#include "support/hash.h"

namespace mlcc::driver {

// A group's kernel as a plan stores it.
struct PlannedKernel {
  lower::LoweredKernel lowered;
  std::string text;  // canonical loop IR
  Hash128 key;
};

// `kernels[i]` belongs to fusion.groups[i].
struct KernelPlan {
  fusion::FusionPlan fusion;
  std::vector<PlannedKernel> kernels;
};

// What a plan does where the cost model is not sure. Each way is right; which one is fast depends
// on caches that a kernel shares with others.
enum class Way : uint8_t {
  kDefault,
  kPasses,  // rows are passed over again where one pass with repairs would do (fusion/online.h)
  kStores,  // values are stored where computing them again saves few bytes (fusion/recompute.h)
};
std::string_view way_name(Way way);  // "default", "passes", "stores"

// Of contractions on the CPU; no columns where kernels of tensors of the CPU are made for another
// device. Asks for the CPU's code generator when it is asked.
graph::TileOptions tile_options(const Options& options);

KernelPlan plan_kernels(const graph::Graph& graph, const Options& options, Way way);

// The ways whose plans may be faster than this one, the default's; none on GPUs.
std::vector<Way> doubtful_ways(const KernelPlan& plan, const Options& options);

}  // namespace mlcc::driver
