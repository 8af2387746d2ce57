// From fusion groups and their kernels to the steps of an executable.
#pragma once

#include <memory>
#include <unordered_map>
#include <vector>

#include "driver/kernel_plan.h"
#include "graph/graph.h"
#include "runtime/executable.h"

namespace mlcc::driver {

// The executables of a node's regions.
using CompiledRegions =
    std::unordered_map<const graph::Node*, std::vector<std::shared_ptr<const runtime::Executable>>>;

// Error where groups run on two devices beside the CPU.
runtime::ExecutablePlan plan_executable(const graph::Graph& graph, const KernelPlan& plan,
                                        const CompiledRegions& regions = {});

}  // namespace mlcc::driver
