// What a call of an executable needs, worked out ahead: symbols by index, size expressions
// translated, the arena laid out. A fully static executable computes nothing per call; otherwise
// results are kept per tuple of sizes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/arena_plan.h"
#include "runtime/executable.h"
#include "runtime/size_expr.h"

namespace mlcc::runtime {

// All numbers of a segment for one tuple of sizes. Immutable.
struct SegmentSizes {
  std::vector<int64_t> key;      // values of Segment::symbols
  std::vector<int64_t> values;   // of Segment::exprs
  std::vector<int64_t> offsets;  // of Segment::arena, in bytes
  int64_t arena_bytes = 0;
};

// A buffer of the arena. Its size follows from `rank` sizes and as many strides at `values`.
struct ArenaSlot {
  int32_t index;  // among all arena slots of the executable
  int32_t values;
  int32_t rank;
  int32_t element_bytes;
  int32_t begin;  // the step that allocates it
  int32_t end;    // the step that releases it, or the end of the segment
};

// A run of steps that sees no new symbol but those bound by its first steps. A new one starts where
// a symbol gets bound in the middle of a call.
class Segment {
 public:
  int32_t begin = 0;       // first step
  int32_t first_work = 0;  // first step that is neither a BindStep nor a ReleaseStep
  int32_t end = 0;
  int32_t lease_until = 0;  // the last segment that still uses this one's arena
  std::vector<SizeExpr> exprs;
  std::vector<int32_t> symbols;  // those that `exprs` use, by index
  std::vector<ArenaSlot> arena;

  // The numbers for these symbol values (all symbols of the executable), from the last ones used if
  // they are there.
  std::shared_ptr<const SegmentSizes> sizes(std::span<const int64_t> symbol_values) const;

  // Works the numbers out at once if no symbol matters to them.
  void fix_if_static();

 private:
  std::shared_ptr<const SegmentSizes> find(std::span<const int64_t> symbol_values) const;
  std::shared_ptr<const SegmentSizes> compute(std::span<const int64_t> symbol_values) const;
  std::shared_ptr<const SegmentSizes> fixed_;  // if static; read without a lock
  mutable std::mutex mutex_;
  mutable std::vector<std::shared_ptr<const SegmentSizes>> recent_;  // most recent first
};

// Beside each step of the executable.
struct StepPlan {
  int32_t values = -1;           // where its numbers start among the segment's values
  int32_t arena_index = -1;      // of an AllocateStep in the arena
  int32_t symbol = -1;           // of a BindStep
  bool rebinds = false;          // of a BindStep: the symbol has a value already, which must agree
  std::vector<int32_t> buffers;  // of a LaunchStep: a slot, or ~index of an arena slot
  std::vector<Slot> releases;    // of a ReleaseStep: the host's slots
};

class CallPlan {
 public:
  explicit CallPlan(const ExecutablePlan& plan);
  CallPlan(const CallPlan&) = delete;
  CallPlan& operator=(const CallPlan&) = delete;

  const std::vector<StepPlan>& steps() const { return steps_; }
  const std::vector<std::unique_ptr<Segment>>& segments() const { return segments_; }
  const std::vector<std::string>& symbols() const { return symbols_; }
  int32_t num_arena_slots() const { return num_arena_slots_; }
  size_t max_buffers() const { return max_buffers_; }  // of launches that run at the same time
  // Where the value of an expression of an extern step stands; the key is its address in the
  // executable's plan.
  const int32_t* find_value(const SymExpr* expr) const;

 private:
  class Builder;
  std::vector<StepPlan> steps_;
  std::vector<std::unique_ptr<Segment>> segments_;
  std::vector<std::string> symbols_;
  std::map<const SymExpr*, int32_t> extern_values_;
  int32_t num_arena_slots_ = 0;
  size_t max_buffers_ = 0;
};

}  // namespace mlcc::runtime
