// What lowerings that compute tiles write their nests with: indices as expressions over loop
// variables, loops, the range of the phase, and tiles whose height is known only when they run.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/lower.h"
#include "schedule/contraction.h"

namespace mlcc::lower {

SymExpr ceil_div(const SymExpr& a, const SymExpr& b);
SymExpr extent_of(const std::vector<const schedule::Axis*>& axes);
void append(loop::Block& block, const loop::Block& more);

class TileNest {
 public:
  TileNest(const Context& context, Evaluator& evaluator, LoweredKernel& lowered)
      : arena_(context.arena), evaluator_(evaluator), lowered_(lowered) {}

  loop::Expr expr(const SymExpr& over_nest) { return evaluator_.nest_expr(over_nest); }
  loop::Expr constant(int64_t value) { return loop::int_constant(arena_, value); }
  loop::Expr apply(loop::ScalarOp op, std::vector<loop::Expr> args) {
    return loop::apply(arena_, op, std::move(args));
  }
  const loop::Variable* variable(std::string_view name);

  // A number that stands in the code by a name; a constant or a name as it is.
  SymExpr let(const SymExpr& value, std::string_view name, loop::Block& block);
  loop::Expr let(loop::Expr value, std::string_view name, loop::Block& block);
  loop::Expr load(const loop::Buffer* buffer, const SymExpr& at) {
    return loop::Load::make(arena_, buffer, {expr(at)});
  }
  void store(const loop::Buffer* buffer, const SymExpr& at, loop::Expr value, loop::Block& block) {
    block.push_back(loop::Store::make(arena_, buffer, {expr(at)}, value));
  }
  // The one or the other, by a name.
  SymExpr select(const loop::Expr& condition, const SymExpr& yes, const SymExpr& no,
                 std::string_view name, loop::Block& block);
  // Of one iteration without lanes: the body alone.
  loop::Block loop_over(std::string_view name, const SymExpr& begin, const SymExpr& end,
                        const loop::LoopMode& mode,
                        const std::function<void(SymExpr, loop::Block&)>& body);
  // The phase's loop over `extent` iterations, each worth `terms` products.
  void add_range(const SymExpr& extent, const SymExpr& terms, int64_t grain_terms,
                 const std::function<void(SymExpr, loop::Block&)>& body);

  void bind(const schedule::Axis& axis, const SymExpr& at, loop::Block& block);
  // Axes that an iteration stands at; `place` counts through them, the last one fastest.
  void bind_axes(const std::vector<const schedule::Axis*>& axes, SymExpr place, loop::Block& block);

  const loop::Buffer* stack(std::string_view name, DType dtype, int64_t elements,
                            loop::Block& block);

  // Rows of a tile. Where the kernel is to find that out: of the heights that there are for so many
  // rows, and are no larger than these, the one that costs least, and of equal ones the largest.
  SymExpr choose_height(const std::vector<int64_t>& heights, const schedule::ManyRows& many,
                        const schedule::HeightCosts& costs, const SymExpr& rows,
                        loop::Block& block);
  // What is made for each height, run where it is this one.
  loop::Block by_height(const std::vector<int64_t>& heights, const SymExpr& height,
                        const std::function<loop::Stmt(int64_t)>& make);

 private:
  loop::Arena& arena_;
  Evaluator& evaluator_;
  LoweredKernel& lowered_;
};

}  // namespace mlcc::lower
