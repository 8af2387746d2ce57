// How the body of a parallel iteration is run by a group of threads: decided here, written down by
// the PhaseEmitter.
//
// All threads of the group run the body together. What stands outside of vector loops they compute
// alike (one of them stores); the iterations of a vector loop are dealt to them, `width` neighbours
// to a thread at a time, round by round. What a thread touches in every vector loop at the same
// place it may keep in registers between them; what threads exchange through memory needs barriers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "codegen/cuda/emitter.h"
#include "codegen/cuda/offsets.h"
#include "loop/ir.h"
#include "loop/varying.h"
#include "support/result.h"

namespace mlcc::codegen::cuda {

// Threads that shuffle among each other.
constexpr int64_t kWarpThreads = 32;

// The vector loops of a body with one range; they deal their iterations in the same way.
struct LoopShape {
  loop::Expr begin, end;
  int64_t width = 1;              // neighbouring iterations that a thread runs at a time
  std::optional<int64_t> rounds;  // enough for the longest range, if that is known
  bool is_full = false;           // every thread has `width` iterations in each round
  bool has_tail = false;          // the range may end inside `width` iterations
};

// Elements that threads keep between vector loops of one shape: those at one place of a buffer.
struct ElementCache {
  const loop::Buffer* buffer;
  SymExpr place;  // offset over sizes, outer variables and kLane, the loop's variable
  std::string name;
  bool is_shared = false;                 // in shared memory, else in registers
  int64_t bytes = 0;                      // of a group, in shared memory
  bool is_loaded = false;                 // read from the buffer by the first loop that has it
  const loop::StmtNode* first = nullptr;  // that loop
};
constexpr const char* kLane = "lane";

// A load or store in a vector loop.
struct VectorAccess {
  const loop::Buffer* buffer;
  const loop::Load* load = nullptr;  // or
  const loop::Store* store = nullptr;
  std::optional<SymExpr> place;  // the offset, over kLane for the loop's variable
  bool is_stable = false;        // the place stays the same whenever the loop runs in an iteration
  bool is_early = false;         // its indices use nothing that the body defines
  bool is_unit = false;          // neighbouring iterations touch neighbouring elements
  // Runs in every iteration, and not only after a check: may be made ahead of the body (a load) or
  // after it (a store).
  bool is_certain = false;
  ElementCache* cache = nullptr;
  bool is_packed = false;  // `width` elements are moved at once
};

// A For or Reduce over a vector loop's range.
struct VectorLoop {
  loop::Stmt stmt;
  const loop::Variable* variable;
  const loop::Block* body;
  std::vector<loop::Expr> yields;  // of a reduce
  size_t shape;
  std::vector<VectorAccess> accesses;
  loop::VariableSet varying;  // between its iterations, itself included
  bool has_inner_loops = false;
  bool has_checks = false;
};

// What a statement touches that other threads of the group may see.
struct Footprint {
  std::unordered_set<const loop::Buffer*> reads, writes;
};

class BodyPlan {
 public:
  // `group` threads run `body`; `groups` of them share a block. `has_widths`: the loops' widths are
  // meant for a GPU (elements of a thread), not for a CPU's vectors.
  static Result<BodyPlan> make(const loop::Block& body, const Offsets& offsets, int64_t group,
                               int64_t groups, bool has_widths, const EmitOptions& options);

  const VectorLoop* find(loop::Stmt stmt) const;  // null if it is no vector loop
  const LoopShape& shape(const VectorLoop& loop) const { return shapes_[loop.shape]; }
  const std::vector<std::unique_ptr<ElementCache>>& caches() const { return caches_; }
  // Of a statement (null: none) with all that is in it, and of expressions.
  Footprint footprint(loop::Stmt stmt, const std::vector<loop::Expr>& exprs = {}) const;
  bool has_checks() const { return has_checks_; }
  // Local buffers that lie in shared memory, and how many bytes all that is shared takes per group.
  const std::vector<const loop::Buffer*>& shared_buffers() const { return shared_buffers_; }
  bool is_private(const loop::Buffer* buffer) const { return private_.contains(buffer); }
  bool is_register_only(const loop::Buffer* buffer) const {
    return register_only_.contains(buffer);
  }
  int64_t shared_bytes() const { return shared_bytes_; }
  static int64_t padded(int64_t bytes);  // what an object takes there
  // What the chosen widths rely on.
  const std::vector<Divisibility>& divisible() const { return divisible_; }
  const std::map<const loop::Buffer*, int64_t>& alignment() const { return alignment_; }

 private:
  friend class BodyPlanner;
  std::vector<LoopShape> shapes_;
  std::vector<std::unique_ptr<VectorLoop>> loops_;
  std::unordered_map<loop::Stmt, VectorLoop*> by_stmt_;
  std::vector<std::unique_ptr<ElementCache>> caches_;
  std::vector<const loop::Buffer*> shared_buffers_;
  std::unordered_set<const loop::Buffer*> register_only_, private_, exempt_;
  int64_t shared_bytes_ = 0;
  bool has_checks_ = false;
  std::vector<Divisibility> divisible_;
  std::map<const loop::Buffer*, int64_t> alignment_;
};

}  // namespace mlcc::codegen::cuda
