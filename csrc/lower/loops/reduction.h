// Reductions of one pass over a row, as nested `reduce` loops whose shape bounds how many terms
// meet in one accumulator.
#pragma once

#include <functional>
#include <vector>

#include "graph/graph.h"
#include "loop/ir.h"
#include "schedule/schedule.h"

namespace mlcc::lower {

// The values a reduction op carries through its loop, and how they are stepped and merged.
class Reducer {
 public:
  Reducer(loop::Arena& arena, graph::Op op, DType dtype);
  size_t num_carried() const { return is_arg() ? 2 : 1; }
  std::vector<loop::Expr> identity() const;
  std::vector<DType> dtypes() const;
  // The carried values after one more element; `at` is its position along the reduced dimension
  // (argmax, argmin).
  std::vector<loop::Expr> step(const std::vector<loop::Expr>& carried, loop::Expr element,
                               loop::Expr at) const;
  // The same where `at` lies behind what `carried` has taken in: equal elements lose.
  std::vector<loop::Expr> step_behind(const std::vector<loop::Expr>& carried, loop::Expr element,
                                      loop::Expr at) const;
  std::vector<loop::Expr> merge(const std::vector<loop::Expr>& left,
                                const std::vector<loop::Expr>& right) const;
  // What no element was better than is the first one's.
  loop::Expr result(const std::vector<loop::Expr>& carried) const;
  // The position of an element that was never found.
  loop::Expr nowhere() const;
  // The same reduction with positions as i32; without positions itself.
  Reducer with_short_positions() const;
  bool accumulates_error()
      const;  // float sums and products: the number of terms per accumulator is bounded
  bool is_arg() const { return op_ == graph::Op::kArgMax || op_ == graph::Op::kArgMin; }

 private:
  std::vector<loop::Expr> merge_arg(const std::vector<loop::Expr>& left,
                                    const std::vector<loop::Expr>& right) const;
  loop::Arena& arena_;
  graph::Op op_;
  DType dtype_;  // of the elements
  DType position_ = DType::kI64;
};

// For each reducer its carried values.
using Reduced = std::vector<std::vector<loop::Expr>>;

// Appends one `reduce` loop that carries what the reducers do, from their identities on, and
// returns its results. `step(body, carried)` gives the values after one more iteration. The values
// of a vector loop's lanes are merged by the reducers.
using ReduceStep = std::function<Reduced(loop::Block&, const Reduced&)>;
Reduced emit_reduce(loop::Arena& arena, const std::vector<Reducer>& reducers,
                    const loop::Variable* variable, loop::Expr begin, loop::Expr end,
                    const loop::LoopMode& mode, loop::Block& block, const ReduceStep& step);

// One loop of the nest a pass runs over.
struct PassAxis {
  const loop::Variable* variable;
  SymExpr extent;
  loop::LoopMode mode;  // serial or vector
  int64_t lanes = 1;    // accumulators side by side, each with its part of the terms
  int64_t rows = 0;     // that are to meet in one loop (schedule.h); 0: any number
  loop::Expr begin = nullptr, end = nullptr;  // a part of the axis, at most `extent` long
  bool is_partials = false;  // elements are partial results, their positions are read from memory
};

// Emits into `block` the loops over `axes` (outermost first, not empty). `body(inner_block)`
// returns, for each reducer, (element, position) of the current point, and may append stores. Along
// an axis positions grow, unless they are those of partial results.
// Returns each reducer's carried values after the loops.
struct ReducedElement {
  loop::Expr element;
  loop::Expr at;
};
using PassBody = std::function<std::vector<ReducedElement>(loop::Block&)>;
Reduced emit_reductions(loop::Arena& arena, const std::vector<Reducer>& reducers,
                        const std::vector<PassAxis>& axes, const Assumptions& assumptions,
                        loop::Block& block, const PassBody& body);

}  // namespace mlcc::lower
