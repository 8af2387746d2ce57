// What the parts of lowering one group share: the group and what it stands in, never changed by
// them, and the arena of the kernel that they write.
#pragma once

#include <string_view>

#include "fusion/fusion.h"
#include "graph/graph.h"
#include "loop/ir.h"
#include "lower/axes/words.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

struct Context {
  const graph::Graph& graph;
  const fusion::FusionPlan& plan;
  const fusion::Group& group;
  const schedule::Machine& machine;
  loop::Arena& arena;
  Words words = {};

  schedule::Schedule choose(const schedule::NestFacts& facts) const {
    return schedule::choose(facts, machine, [&](std::string_view name) { return hint(name); });
  }

  int64_t expected(const SymExpr& size) const { return graph.expected(size); }

  // Whether the kernel probably moves more than the caches hold.
  bool moves_much() const {
    return machine.streaming_bytes > 0 && expected(group.ideal_bytes) >= machine.streaming_bytes;
  }

  int64_t hint(std::string_view name) const { return graph.size_hint(name); }
};

}  // namespace mlcc::lower
