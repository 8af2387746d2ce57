// Several levels of reductions in one pass over a row, where fusion/online.h allows it: a block of
// the row at a time goes through all levels, while it is in a first-level cache, with the row
// values that follow from what was seen so far. What the sums have taken in before is repaired when
// these values change.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <vector>

#include "loop/ir.h"
#include "lower/context.h"
#include "lower/element/evaluator.h"
#include "lower/group_nodes.h"
#include "lower/loops/nest.h"
#include "lower/loops/reduction.h"

namespace mlcc::lower {

class Online {
 public:
  // The reductions of the levels below `levels`, of which those from level 1 on have repairs.
  Online(const Context& context, const GroupNodes& nodes, Nest& nest, Evaluator& evaluator,
         int levels);

  int levels() const { return levels_; }
  // In program order.
  const std::vector<const graph::Node*>& reductions() const { return reductions_; }
  // Of the reductions; then, where squares around means are summed, of their differences from them
  // and of the number of terms.
  const std::vector<Reducer>& reducers() const { return reducers_; }

  // Reduces the elements of one level over `axis`, inside the loops over the axes around it.
  // Results are those of the level's reductions in program order, then those of
  // differences_of(level).
  using ReduceLevel = std::function<Reduced(int level, const PassAxis& axis, loop::Block& block)>;
  // The loops over `axes`, outermost first, not empty.
  Reduced emit(const std::vector<PassAxis>& axes, const ReduceLevel& reduce, loop::Block& block);
  std::vector<graph::Access> differences_of(int level) const;
  // Of two parts of a row.
  Reduced merge(const Reduced& left, const Reduced& right, loop::Block& block);
  // What a whole row carried, without what the rounding of means added to sums of squares.
  Reduced settle(Reduced state, loop::Block& block);

 private:
  using Shifts = std::vector<std::vector<loop::Expr>>;  // per reduction of the level, per step

  Reduced over_axis(const std::vector<PassAxis>& axes, size_t i, loop::Block& block);
  int64_t block_size(const PassAxis& axis) const;
  std::vector<int64_t> sizes_of(const PassAxis& axis, int64_t smallest) const;
  // What is carried after one of the smallest blocks, [from, to).
  using TakeIn =
      std::function<Reduced(const Reduced& carried, loop::Expr from, loop::Expr to, loop::Block&)>;
  Reduced over_blocks(const PassAxis& axis, loop::Expr begin, loop::Expr end,
                      const std::vector<int64_t>& sizes, loop::Block& block, const TakeIn& take);
  Reduced take_in(const PassAxis& axis, const Reduced& before, loop::Expr begin, loop::Expr end,
                  loop::Block& block);
  void define_rows(int level, const Reduced& state);
  Shifts shifts(int level, const Reduced& state, loop::Block& block);
  void repair(int level, Reduced& state, const Reduced& now, loop::Block& block);
  loop::Expr scaled(size_t r, const Reduced& state, const std::vector<loop::Expr>& before,
                    const std::vector<loop::Expr>& now);
  void spread(size_t r, Reduced& state, loop::Expr before, loop::Expr now);
  bool is_spread(size_t r) const;
  loop::Expr is_lowest(const graph::Node& largest, const Reduced& state) const;
  size_t place_of(const graph::Node& reduction) const;
  std::vector<size_t> places_of(int level) const;
  std::vector<size_t> reducers_of(int level) const;
  const fusion::Repair& repair_of(size_t r) const;
  void need(const graph::Value& value);
  loop::Expr terms_of_row(DType dtype) const;
  loop::Expr apply(loop::ScalarOp op, std::vector<loop::Expr> args) const;

  const Context& context_;
  const GroupNodes& nodes_;
  Nest& nest_;
  Evaluator& evaluator_;
  const int levels_;
  std::vector<const graph::Node*> reductions_;
  std::vector<Reducer> reducers_;
  std::vector<size_t> difference_of_;  // by reduction: the reducer of its differences
  bool counts_ = false;
  std::set<const graph::Node*> shifts_;  // largest elements that exponentials are taken below
  std::map<const graph::Node*, const graph::Node*> divisors_;  // sums: those shifts of theirs
  std::set<const graph::Node*> means_;   // sums of which repairs need the mean
  std::set<const graph::Node*> needed_;  // row values on the way to what repairs are about
  const ReduceLevel* reduce_ = nullptr;  // while loops are emitted
};

}  // namespace mlcc::lower
