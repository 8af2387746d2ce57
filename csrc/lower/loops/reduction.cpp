#include "lower/loops/reduction.h"

#include <algorithm>
#include <limits>

#include "loop/mutator.h"
#include "support/error.h"

namespace mlcc::lower {

using graph::Op;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;

namespace {

// Terms that are added into one accumulator before it is folded into the next level: the error
// grows with the terms of a level, not with the length of the row. A vector loop has many
// accumulators side by side, which are merged as a tree; a serial loop has one, so it folds
// earlier.
constexpr int64_t kTermsPerLane = 64;
constexpr int64_t kTermsPerSerialAccumulator = 16;
// Levels of accumulators, at most: so many there are where the length of a row is not known.
constexpr size_t kLevelsOfLanes = 3, kLevelsOfSerial = 4;

ScalarOp merging_op(Op op) {
  static constexpr std::pair<Op, ScalarOp> kMerging[] = {
      {Op::kSum, ScalarOp::kAdd}, {Op::kProd, ScalarOp::kMul}, {Op::kMax, ScalarOp::kMax},
      {Op::kMin, ScalarOp::kMin}, {Op::kAny, ScalarOp::kOr},   {Op::kAll, ScalarOp::kAnd}};
  for (const auto& [reduction, merging] : kMerging)
    if (reduction == op) return merging;
  MLCC_UNREACHABLE("lowering: ", graph::op_info(op).text, " is no reduction with a merging op");
}

int64_t lowest_integer(DType dtype) {
  if (!is_signed_integer(dtype)) return 0;
  return std::numeric_limits<int64_t>::min() >> (64 - 8 * dtype_size(dtype));
}

int64_t highest_integer(DType dtype) {
  if (dtype == DType::kBool) return 1;
  if (dtype == DType::kU8) return 255;
  return std::numeric_limits<int64_t>::max() >> (64 - 8 * dtype_size(dtype));
}

Expr extreme(loop::Arena& arena, DType dtype, bool low) {
  if (is_float(dtype)) {
    const double infinity = std::numeric_limits<double>::infinity();
    return loop::Constant::make_float(arena, dtype, low ? -infinity : infinity);
  }
  return loop::Constant::make_int(arena, dtype,
                                  low ? lowest_integer(dtype) : highest_integer(dtype));
}

}  // namespace

Reducer::Reducer(loop::Arena& arena, Op op, DType dtype) : arena_(arena), op_(op), dtype_(dtype) {}

std::vector<Expr> Reducer::identity() const {
  if (op_ == Op::kArgMax || op_ == Op::kArgMin)
    return {extreme(arena_, dtype_, op_ == Op::kArgMax), nowhere()};
  if (op_ == Op::kMax || op_ == Op::kMin) return {extreme(arena_, dtype_, op_ == Op::kMax)};
  const int64_t value = op_ == Op::kProd || op_ == Op::kAll ? 1 : 0;
  if (is_float(dtype_))
    return {loop::Constant::make_float(arena_, dtype_, static_cast<double>(value))};
  return {loop::Constant::make_int(arena_, dtype_, value)};
}

std::vector<DType> Reducer::dtypes() const {
  if (is_arg()) return {dtype_, position_};
  return {dtype_};
}

bool Reducer::accumulates_error() const {
  return is_float(dtype_) && (op_ == Op::kSum || op_ == Op::kProd);
}

std::vector<Expr> Reducer::step(const std::vector<Expr>& carried, Expr element, Expr at) const {
  if (is_arg()) return merge_arg(carried, {element, at});
  return merge(carried, {element});
}

std::vector<Expr> Reducer::step_behind(const std::vector<Expr>& carried, Expr element,
                                       Expr at) const {
  if (!is_arg()) return merge(carried, {element});
  const auto apply = [&](ScalarOp op, std::vector<Expr> args) {
    return loop::apply(arena_, op, std::move(args));
  };
  Expr takes = apply(op_ == Op::kArgMax ? ScalarOp::kGt : ScalarOp::kLt, {element, carried[0]});
  if (is_float(dtype_)) {  // also NaN, unless there is one already
    const ScalarOp no_better = op_ == Op::kArgMax ? ScalarOp::kLe : ScalarOp::kGe;
    const Expr has_number = apply(ScalarOp::kNot, {apply(ScalarOp::kIsNan, {carried[0]})});
    const Expr differs = apply(ScalarOp::kNot, {apply(no_better, {element, carried[0]})});
    takes = apply(ScalarOp::kAnd, {has_number, differs});
  }
  return {apply(ScalarOp::kSelect, {takes, element, carried[0]}),
          apply(ScalarOp::kSelect, {takes, at, carried[1]})};
}

Expr Reducer::nowhere() const {
  return loop::Constant::make_int(arena_, position_, highest_integer(position_));
}

Expr Reducer::result(const std::vector<Expr>& carried) const {
  if (!is_arg()) return carried.back();
  const Expr is_nowhere = loop::apply(arena_, ScalarOp::kEq, {carried.back(), nowhere()});
  const Expr first = loop::Constant::make_int(arena_, position_, 0);
  return loop::apply(arena_, ScalarOp::kSelect, {is_nowhere, first, carried.back()});
}

Reducer Reducer::with_short_positions() const {
  Reducer reducer = *this;
  reducer.position_ = DType::kI32;
  return reducer;
}

std::vector<Expr> Reducer::merge(const std::vector<Expr>& left,
                                 const std::vector<Expr>& right) const {
  if (is_arg()) return merge_arg(left, right);
  return {loop::apply(arena_, merging_op(op_), {left[0], right[0]})};
}

// The better element wins, the smaller position among equals; NaN is better than any number and
// equal to itself.
std::vector<Expr> Reducer::merge_arg(const std::vector<Expr>& left,
                                     const std::vector<Expr>& right) const {
  const auto apply = [&](ScalarOp op, std::vector<Expr> args) {
    return loop::apply(arena_, op, std::move(args));
  };
  const ScalarOp better = op_ == Op::kArgMax ? ScalarOp::kGt : ScalarOp::kLt;
  Expr wins = apply(better, {right[0], left[0]});
  Expr ties = apply(ScalarOp::kEq, {right[0], left[0]});
  if (is_float(dtype_)) {
    const Expr right_nan = apply(ScalarOp::kIsNan, {right[0]});
    const Expr left_nan = apply(ScalarOp::kIsNan, {left[0]});
    wins = apply(ScalarOp::kOr,
                 {wins, apply(ScalarOp::kAnd, {right_nan, apply(ScalarOp::kNot, {left_nan})})});
    ties = apply(ScalarOp::kOr, {ties, apply(ScalarOp::kAnd, {right_nan, left_nan})});
  }
  const Expr earlier = apply(ScalarOp::kLt, {right[1], left[1]});
  const Expr take = apply(ScalarOp::kOr, {wins, apply(ScalarOp::kAnd, {ties, earlier})});
  return {apply(ScalarOp::kSelect, {take, right[0], left[0]}),
          apply(ScalarOp::kSelect, {take, right[1], left[1]})};
}

namespace {

// Iterations of a loop that counts positions in i32.
constexpr int64_t kMostShortPositions = int64_t{1} << 30;

Reduced merged(const std::vector<Reducer>& reducers, const Reduced& left, const Reduced& right) {
  Reduced result;
  for (size_t r = 0; r < reducers.size(); ++r)
    result.push_back(reducers[r].merge(left[r], right[r]));
  return result;
}

Reduced fresh(loop::Arena& arena, const std::vector<Reducer>& reducers, std::string_view base) {
  Reduced values;
  for (const Reducer& reducer : reducers) {
    values.emplace_back();
    for (const DType dtype : reducer.dtypes())
      values.back().push_back(Variable::make(arena, dtype, arena.fresh_name(base)));
  }
  return values;
}

std::vector<Expr> flat(const Reduced& values) {
  std::vector<Expr> all;
  for (const auto& part : values) all.insert(all.end(), part.begin(), part.end());
  return all;
}

std::vector<const Variable*> variables(const Reduced& values) {
  std::vector<const Variable*> all;
  for (const Expr e : flat(values)) all.push_back(loop::as<Variable>(e));
  return all;
}

}  // namespace

Reduced emit_reduce(loop::Arena& arena, const std::vector<Reducer>& reducers,
                    const Variable* variable, Expr begin, Expr end, const loop::LoopMode& mode,
                    Block& block, const ReduceStep& step) {
  const Reduced carried = fresh(arena, reducers, "acc");
  const Reduced results = fresh(arena, reducers, "r");
  std::vector<loop::Carried> description;
  for (size_t r = 0; r < reducers.size(); ++r) {
    const std::vector<Expr> identity = reducers[r].identity();
    for (size_t k = 0; k < identity.size(); ++k)
      description.push_back(
          {loop::as<Variable>(carried[r][k]), identity[k], loop::as<Variable>(results[r][k])});
  }
  Block body;
  const std::vector<Expr> yields = flat(step(body, carried));
  std::optional<loop::Combine> combine;
  if (mode.kind == loop::LoopKind::kVector) {
    const Reduced left = fresh(arena, reducers, "l"), right = fresh(arena, reducers, "rr");
    combine =
        loop::Combine{variables(left), variables(right), {}, flat(merged(reducers, left, right))};
  }
  block.push_back(loop::Reduce::make(arena, variable, begin, end, mode, std::move(description),
                                     std::move(body), yields, std::move(combine)));
  return results;
}

namespace {

class PassEmitter {
 public:
  PassEmitter(loop::Arena& arena, const std::vector<Reducer>& reducers,
              const std::vector<PassAxis>& axes, const Assumptions& assumptions,
              const PassBody& body)
      : arena_(arena), reducers_(reducers), axes_(axes), assumptions_(assumptions), body_(body) {
    for (const Reducer& reducer : reducers) {
      bounded_ |= reducer.accumulates_error();
      counts_places_ |= reducer.is_arg() && !axes.back().is_partials;
      inner_reducers_.push_back(counts_places_ ? reducer.with_short_positions() : reducer);
    }
  }

  Reduced emit(Block& block) { return over_axis(0, block); }

 private:
  // The loop over axis i, cut into blocks of blocks while it is longer than an accumulator may be.
  Reduced over_axis(size_t i, Block& block) {
    const PassAxis& axis = axes_[i];
    const Expr begin = axis.begin != nullptr ? axis.begin : loop::int_constant(arena_, 0);
    const Expr end = axis.end != nullptr ? axis.end : loop::from_symbolic(arena_, axis.extent);
    int64_t terms = axis.lanes > 1 ? kTermsPerLane : kTermsPerSerialAccumulator;
    if (axis.rows > 0) terms = std::min(terms, axis.rows);
    std::vector<int64_t> sizes{terms * axis.lanes};
    const int64_t high = assumptions_.range(axis.extent).high;
    const size_t most_levels = axis.lanes > 1 ? kLevelsOfLanes : kLevelsOfSerial;
    while (bounded_ && sizes.size() < most_levels && high > sizes.back())
      sizes.push_back(sizes.back() * terms);
    if (!bounded_)
      sizes = {counts_places_ ? kMostShortPositions : std::numeric_limits<int64_t>::max()};
    if (!bounded_ && high > sizes.back()) sizes.push_back(std::numeric_limits<int64_t>::max());
    return over_blocks(i, sizes, sizes.size() - 1, begin, end, block);
  }

  // [begin, end) of axis i; level 0 runs the axis itself, higher ones step by sizes[level - 1].
  Reduced over_blocks(size_t i, const std::vector<int64_t>& sizes, size_t level, Expr begin,
                      Expr end, Block& block) {
    if (level == 0 && i + 1 == axes_.size()) return over_points(begin, end, block);
    if (level == 0)
      return emit_reduce(arena_, reducers_, axes_[i].variable, begin, end, axes_[i].mode, block,
                         [&](Block& inner, const Reduced& carried) {
                           return merged(reducers_, carried, over_axis(i + 1, inner));
                         });
    const Expr step = loop::int_constant(arena_, sizes[level - 1]);
    const Expr length = loop::apply(arena_, ScalarOp::kSub, {end, begin});
    const Expr padded = loop::apply(arena_, ScalarOp::kAdd,
                                    {length, loop::int_constant(arena_, sizes[level - 1] - 1)});
    const Expr blocks = loop::apply(arena_, ScalarOp::kFloorDiv, {padded, step});
    const Variable* variable = Variable::make(arena_, DType::kI64, arena_.fresh_name("block"));
    return emit_reduce(
        arena_, reducers_, variable, loop::int_constant(arena_, 0), blocks, {}, block,
        [&](Block& inner, const Reduced& carried) {
          const Expr offset = loop::apply(arena_, ScalarOp::kMul, {variable, step});
          const Expr from = loop::apply(arena_, ScalarOp::kAdd, {begin, offset});
          const Expr to = loop::apply(arena_, ScalarOp::kMin,
                                      {end, loop::apply(arena_, ScalarOp::kAdd, {from, step})});
          const Reduced more = over_blocks(i, sizes, level - 1, from, to, inner);
          return i + 1 == axes_.size() ? later(carried, more) : merged(reducers_, carried, more);
        });
  }

  // What is carried and what a later block of the last axis gives.
  Reduced later(const Reduced& carried, const Reduced& more) const {
    Reduced next;
    for (size_t r = 0; r < reducers_.size(); ++r)
      next.push_back(reducers_[r].step_behind(carried[r], more[r].front(), more[r].back()));
    return next;
  }

  // [begin, end) of the last axis. Positions are counted from `begin` in i32, half of what an i64
  // takes in registers, and turned into those of the elements behind the loop.
  Reduced over_points(Expr begin, Expr end, Block& block) {
    const PassAxis& axis = axes_.back();
    std::vector<ReducedElement> elements;
    const auto step = [&](Block& inner, const Reduced& carried) {
      elements = body_(inner);
      const Expr place = loop::Cast::make(
          arena_, DType::kI32, loop::apply(arena_, ScalarOp::kSub, {axis.variable, begin}));
      Reduced next;
      for (size_t r = 0; r < reducers_.size(); ++r) {
        const auto& [element, at] = elements[r];
        next.push_back(counts_places_ ? inner_reducers_[r].step_behind(carried[r], element, place)
                                      : reducers_[r].step(carried[r], element, at));
      }
      return next;
    };
    Reduced results =
        emit_reduce(arena_, inner_reducers_, axis.variable, begin, end, axis.mode, block, step);
    for (size_t r = 0; counts_places_ && r < reducers_.size(); ++r)
      if (reducers_[r].is_arg())
        results[r].back() = position(r, elements[r].at, begin, results[r].back(), block);
    return results;
  }

  // `at` where the last axis is `place` behind `begin`.
  Expr position(size_t r, Expr at, Expr begin, Expr place, Block& block) {
    const Expr there =
        loop::apply(arena_, ScalarOp::kAdd, {begin, loop::Cast::make(arena_, DType::kI64, place)});
    const Expr found = loop::substitute(arena_, at, axes_.back().variable, there);
    const Expr is_nowhere =
        loop::apply(arena_, ScalarOp::kEq, {place, inner_reducers_[r].nowhere()});
    const Variable* variable = Variable::make(arena_, DType::kI64, arena_.fresh_name("at"));
    block.push_back(loop::Let::make(
        arena_, variable,
        loop::apply(arena_, ScalarOp::kSelect, {is_nowhere, reducers_[r].nowhere(), found})));
    return variable;
  }

  loop::Arena& arena_;
  const std::vector<Reducer>& reducers_;
  const std::vector<PassAxis>& axes_;
  const Assumptions& assumptions_;
  const PassBody& body_;
  bool bounded_ = false;
  bool counts_places_ = false;
  std::vector<Reducer> inner_reducers_;  // of the last axis
};

}  // namespace

Reduced emit_reductions(loop::Arena& arena, const std::vector<Reducer>& reducers,
                        const std::vector<PassAxis>& axes, const Assumptions& assumptions,
                        Block& block, const PassBody& body) {
  return PassEmitter(arena, reducers, axes, assumptions, body).emit(block);
}

}  // namespace mlcc::lower
