// From a fusion group to a loop-IR kernel: the only code that sees both IRs.
#pragma once

#include <string>
#include <vector>

#include "fusion/fusion.h"
#include "graph/graph.h"
#include "loop/ir.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

// The range a phase's parallel loop runs over, and how many iterations of it are worth a thread.
struct PhaseRange {
  SymExpr extent;
  SymExpr grain;
};

// Memory that a kernel needs during its launch.
struct Scratch {
  DType dtype;
  SymExpr elements;
};

struct LoweredKernel {
  loop::Kernel kernel;                 // canonical (loop::canonicalize)
  std::vector<graph::Value*> buffers;  // what each buffer parameter is, in order
  std::vector<Scratch> scratch;        // the buffer parameters behind these
  std::vector<SymExpr> sizes;          // value of each size parameter, in order
  std::vector<PhaseRange> phases;
  schedule::Schedule schedule;
  bool is_online = false;  // reductions of several levels share a pass, see online.h
  std::string label;       // ops in it, for logs: "add, rsqrt, mul"
};

LoweredKernel lower_group(const graph::Graph& graph, const fusion::FusionPlan& plan,
                          const fusion::Group& group, const schedule::Machine& machine,
                          loop::Arena& arena);

}  // namespace mlcc::lower
