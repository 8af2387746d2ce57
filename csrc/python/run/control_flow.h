// A step of control flow: runs the executables of its regions, see graph/control_flow.h.
#pragma once

#include <memory>
#include <vector>

#include "graph/control_flow.h"
#include "python/run/ivalues.h"
#include "runtime/executable.h"

namespace mlcc::python {

class TensorProgram;

class ControlFlowCall {
 public:
  // `step` outlives this.
  explicit ControlFlowCall(const runtime::ExternStep& step);
  ~ControlFlowCall();
  ControlFlowCall(const ControlFlowCall&) = delete;
  ControlFlowCall& operator=(const ControlFlowCall&) = delete;

  // Takes the arguments from `slots` and puts the results there. Nothing of Python runs here but
  // ops that Python implements.
  void run(Slots& slots, const Evaluate& evaluate) const;

 private:
  class Run;
  const runtime::ExternStep& step_;
  graph::ControlFlow kind_;
  std::vector<std::unique_ptr<const TensorProgram>> regions_;
};

}  // namespace mlcc::python
