// From fusion groups and their kernels to the steps of an executable.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"
#include "lower/lower.h"
#include "runtime/executable.h"

namespace mlcc::driver {

// A group's kernel as the plan stores it.
struct PlannedKernel {
  lower::LoweredKernel lowered;
  std::string text;  // canonical loop IR
  Hash128 key;
};

// The executables of a node's regions.
using CompiledRegions =
    std::unordered_map<const graph::Node*, std::vector<std::shared_ptr<const runtime::Executable>>>;

// `kernels[i]` belongs to plan.groups[i]. Error where groups run on two devices beside the CPU.
runtime::ExecutablePlan plan_executable(const graph::Graph& graph, const fusion::FusionPlan& plan,
                                        const std::vector<PlannedKernel>& kernels,
                                        const CompiledRegions& regions = {});

}  // namespace mlcc::driver
