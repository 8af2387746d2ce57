// Graphs of one kernel, lowered.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "fusion/fusion.h"
#include "graph/text.h"
#include "loop/interpreter.h"
#include "loop/text.h"
#include "lower/lower.h"
#include "schedule/machine.h"

namespace mlcc::lower {

// The only kernel of a graph, lowered for a machine and ready to be interpreted.
class OneKernel {
 public:
  explicit OneKernel(const std::string& text, const schedule::Machine& machine = {})
      : graph_(graph::parse_graph(text)), plan_(fusion::plan_fusion(*graph_, {})) {
    EXPECT_EQ(plan_.groups.size(), 1U);
    lowered_ = lower_group(*graph_, plan_, plan_.groups[0], machine, arena_);
    loop::verify(lowered_.kernel);
  }

  // `buffers` are those of LoweredKernel::buffers; scratch memory is added.
  void run(std::vector<void*> buffers) {
    std::vector<std::vector<double>> scratch;
    for (const Scratch& each : lowered_.scratch) {
      scratch.emplace_back(static_cast<size_t>(*each.elements.as_constant()), std::nan(""));
      buffers.push_back(scratch.back().data());
    }
    EXPECT_EQ(loop::interpret(lowered_.kernel, {}, buffers), 0);
  }

  const LoweredKernel& lowered() const { return lowered_; }
  std::string text() const { return loop::print(lowered_.kernel); }

 private:
  std::unique_ptr<graph::Graph> graph_;
  fusion::FusionPlan plan_;
  loop::Arena arena_;
  LoweredKernel lowered_;
};

inline std::string text_of_kernel(const std::string& graph, const schedule::Machine& machine = {}) {
  return OneKernel(graph, machine).text();
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace mlcc::lower
