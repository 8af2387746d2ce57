// What lowering learns from a run of the evaluator without loops yet: every access to memory and
// every index expression. Axes and schedule follow from it.
#pragma once

#include <cstdint>
#include <vector>

#include "graph/graph.h"
#include "lower/axes/nest_axes.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

struct Recording {
  struct MemoryAccess {
    SymExpr offset;
    int64_t element_bytes;
    bool is_store;
    graph::Value* value;
    bool is_masked;
  };
  std::vector<MemoryAccess> accesses;
  std::vector<SymExpr> indices;  // every index expression, also those of constants and masks
  // Where a place stands to [begin, end) decides what happens there (cat, pad, extend).
  struct Range {
    SymExpr at, begin, end;
  };
  std::vector<Range> ranges;
  int64_t ops = 0;
  int64_t widest_bytes = 1;
  bool draws = false;
};

// As the schedule wants it.
schedule::NestFacts facts_of(const Recording& recording, const NestAxes& axes);

}  // namespace mlcc::lower
