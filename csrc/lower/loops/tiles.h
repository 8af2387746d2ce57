// Exchanging loads through tiles (GPUs): loads that are contiguous along another axis than the rest
// are read along that axis into a tile in shared memory and taken from there along the vector axis.
#pragma once

#include <utility>
#include <vector>

#include "loop/ir.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/loops/nest.h"

namespace mlcc::lower {

class Tiles {
 public:
  // The nest's schedule has a tile axis.
  Tiles(const Context& context, Nest& nest, Evaluator& evaluator)
      : context_(context), nest_(nest), evaluator_(evaluator) {}

  // The one phase; `row` emits what a point does.
  Nest::Phase build(const Recording& recording, const Nest::Row& row);

 private:
  const schedule::Axis& vector_axis() const { return axis(nest_.schedule().vector_axis); }
  const schedule::Axis& tile_axis() const { return axis(nest_.schedule().tile_axis); }
  const schedule::Axis& axis(int i) const { return nest_.axes()[static_cast<size_t>(i)]; }
  bool is_tiled(size_t axis) const;
  bool is_exchanged(const Recording::MemoryAccess& access, const SymExpr& offset) const;
  loop::Block tile_lets(const loop::Variable* parallel, SymExpr& extent);
  loop::Expr tile_point(const loop::Variable* point, bool vector_is_fast, loop::Block& block);
  void fill_tiles(const Recording& recording, loop::Expr is_inside, loop::Block& body,
                  loop::Block& fill);
  loop::Stmt over_points(const loop::Variable* point, loop::Block block) const;

  const Context& context_;
  Nest& nest_;
  Evaluator& evaluator_;
};

}  // namespace mlcc::lower
