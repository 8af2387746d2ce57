// The loops around the points of a group's domain: one parallel loop over kept axes, in it the
// vector axis if that is kept. What happens for each row in it is the caller's (rows.h).
#pragma once

#include <functional>
#include <optional>
#include <vector>

#include "loop/ir.h"
#include "lower/axes/nest_axes.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/element/segments.h"
#include "lower/loops/reduction.h"
#include "lower/lower.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

// The axis of the pieces that a reduction is cut into.
inline constexpr const char* kPieceAxis = "piece";

class Nest {
 public:
  // Emits what one point of the kept axes does.
  using Row = std::function<void(loop::Block&)>;

  Nest(const Context& context, const NestAxes& axes, schedule::Schedule schedule,
       Evaluator& evaluator);

  // Each combination of segments gets code of its own: loops one after the other along the vector
  // axis, branches along others.
  void set_cuts(std::vector<Cut> cuts);
  // A buffer that each point of the kept axes has for itself, in every phase.
  void add_row_buffer(const loop::Buffer* buffer) { row_buffers_.push_back(buffer); }

  const std::vector<schedule::Axis>& axes() const { return axes_.axes(); }
  const NestAxes& nest_axes() const { return axes_; }
  const schedule::Schedule& schedule() const { return schedule_; }

  // One phase. `pieces` > 1: their number is the outermost axis. `group`: the threads of a GPU that
  // share an iteration.
  struct Phase {
    loop::Block block;
    PhaseRange range;
  };
  Phase build(int64_t pieces, int64_t group, const Row& row);

  // The kept vector axis, or the part of it that an iteration takes; null where none is kept.
  struct VectorRange {
    const schedule::Axis* axis = nullptr;
    loop::Expr begin = nullptr, end = nullptr;
  };
  // The same without the vector loop, which `body` puts where it wants it, by emit_vector.
  using Body = std::function<void(loop::Block&, const VectorRange&)>;
  Phase build_around(int64_t pieces, int64_t group, const Body& body);
  void emit_vector(const VectorRange& range, loop::Block& block, const Row& row);

  // A loop variable of its own for each pass: names are unique in a kernel.
  const loop::Variable* pass_variable(const schedule::Axis& axis);
  // The loops over a row, outermost first.
  std::vector<PassAxis> pass_axes();
  // The loop over a part of the innermost of these once more, with a variable of its own.
  PassAxis pass_axis(const PassAxis& innermost);
  // Recovers each outer axis from the parallel loop's variable; chunks run fastest.
  loop::Block outer_lets(const std::vector<const schedule::Axis*>& outer, const SymExpr& chunks,
                         loop::Expr parallel);

  bool vector_is_reduced() const;
  SymExpr row_extent() const;
  // Elements of the vector axis, a kept one, that one iteration of the parallel loop takes.
  int64_t columns_of_iteration() const;
  // The current point's place among the reduced axes (in a row) or among the kept ones, in
  // elements, over the nest's axes.
  SymExpr place_among(bool reduced) const;

 private:
  struct KeptAxes {
    std::vector<const schedule::Axis*> outer;
    const schedule::Axis* vector = nullptr;
    SymExpr extent = 1;  // of the outer ones
    SymExpr chunks = 1;  // of the vector axis
  };
  KeptAxes kept_axes() const;
  const schedule::Axis& tiled_axis() const {
    return axes()[static_cast<size_t>(schedule_.tile_axis)];
  }
  void emit_blocks(const VectorRange& range, loop::Block& block, const Row& row);
  loop::Block elements_beside(const VectorRange& range, const SymExpr& begin, int64_t count,
                              const Row& row);
  void request_next_block(const loop::Block& element, const loop::Variable* within,
                          loop::Block& block);
  loop::LoopMode vector_mode() const;
  loop::LoopMode pass_mode(const schedule::Axis& axis) const;
  // Of a reduction over the vector axis: one for each lane, on a GPU one for each thread.
  int64_t accumulators() const;
  loop::Expr piece_let(const SymExpr& iterations, const loop::Variable* parallel,
                       loop::Block& body);
  loop::Expr block_let(const loop::Variable* parallel, loop::Block& body);
  VectorRange vector_range(const KeptAxes& kept, loop::Expr item, loop::Block& body);
  loop::Expr let_begin(loop::Expr e, loop::Block& block);
  PhaseRange range_of(const KeptAxes& kept, int64_t pieces) const;
  void add_vector_loop(const VectorRange& range, loop::LoopMode mode, const Row& row,
                       loop::Block& block);
  loop::LoopMode segment_mode(const Evaluator::Segment& segment) const;
  struct Bounds {
    SymExpr begin, end;
  };
  void for_each_segment(
      const schedule::Axis& axis, const std::vector<SymExpr>& ends,
      const std::function<void(const Evaluator::Segment& inside, const Bounds& bounds)>& emit);
  void emit_branches(size_t cut, loop::Block& block, const VectorRange& vector, const Body& emit);
  VectorRange part_of(const VectorRange& range, const Bounds& bounds) const;

  const Context& context_;
  const NestAxes& axes_;
  const schedule::Schedule schedule_;
  Evaluator& evaluator_;
  std::optional<SymExpr> blocks_;  // of the axis that loads are exchanged with (CPU): how many
  std::vector<SymExpr> vector_ends_;
  std::vector<Cut> branches_;
  std::vector<const loop::Buffer*> row_buffers_;
};

void add_phase(Nest::Phase phase, LoweredKernel& lowered);

}  // namespace mlcc::lower
