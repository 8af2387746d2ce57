#include "lower/reductions/online.h"

#include <algorithm>
#include <limits>

#include "support/error.h"

namespace mlcc::lower {

using fusion::RepairKind;
using fusion::RepairStep;
using graph::Node;
using graph::Value;
using loop::Block;
using loop::Expr;
using loop::ScalarOp;
using loop::Variable;

namespace {

// Elements of a block where they are the lanes of vectors: 16 KB of f32, half of a first-level
// cache.
constexpr int64_t kBlockElements = 4096;
// Blocks that meet in one sum: as many terms as there are blocks would add up their errors.
constexpr int64_t kBlocksTogether = 16;
// Of blocks of blocks, at most: so many there are where the length of a row is not known.
constexpr size_t kMostLevels = 4;

}  // namespace

Online::Online(const Context& context, const GroupNodes& nodes, Nest& nest, Evaluator& evaluator,
               int levels)
    : context_(context), nodes_(nodes), nest_(nest), evaluator_(evaluator), levels_(levels) {
  for (const Node* node : nodes.reductions()) {
    if (nodes.level_of(node->result()) >= levels) continue;
    reductions_.push_back(node);
    reducers_.emplace_back(context.arena, node->op(), carried_dtype(*node));
  }
  DType count = DType::kF32;
  difference_of_.resize(reductions_.size());
  for (size_t r = 0; r < reductions_.size(); ++r) {
    if (nodes.level_of(reductions_[r]->result()) == 0) continue;
    for (const RepairStep& step : repair_of(r)) {
      need(*step.row.value);
      if (step.kind == RepairKind::kScale) shifts_.insert(step.reduction);
      if (fusion::is_division(step.kind))
        divisors_[step.reduction] = context.group.repairs.at(step.reduction)[0].reduction;
    }
    if (!is_spread(r)) continue;
    const DType dtype = carried_dtype(*reductions_[r]);
    counts_ = true;
    means_.insert(repair_of(r)[0].reduction);
    if (dtype == DType::kF64) count = dtype;
    difference_of_[r] = reducers_.size();
    reducers_.emplace_back(context.arena, graph::Op::kSum, dtype);
  }
  if (counts_) reducers_.emplace_back(context.arena, graph::Op::kSum, count);
}

bool Online::is_spread(size_t r) const {
  const auto found = context_.group.repairs.find(reductions_[r]);
  return found != context_.group.repairs.end() && found->second[0].kind == RepairKind::kSpread;
}

std::vector<graph::Access> Online::differences_of(int level) const {
  std::vector<graph::Access> differences;
  for (const size_t r : places_of(level))
    if (is_spread(r)) differences.push_back(repair_of(r)[0].difference);
  return differences;
}

// Notes the row values of the group behind a value.
void Online::need(const Value& value) {
  const Node* node = value.producer();
  if (node == nullptr || !needed_.insert(node).second) return;
  if (context_.group.placements.count(node) && is_reduction(*node)) return;
  for (const Value* source : nodes_.sources_of(*node)) need(*source);
}

const fusion::Repair& Online::repair_of(size_t r) const {
  return context_.group.repairs.at(reductions_[r]);
}

std::vector<size_t> Online::places_of(int level) const {
  std::vector<size_t> places;
  for (size_t r = 0; r < reductions_.size(); ++r)
    if (nodes_.level_of(reductions_[r]->result()) == level) places.push_back(r);
  return places;
}

// The reducers of a level: those of its reductions, then those of differences_of(level).
std::vector<size_t> Online::reducers_of(int level) const {
  std::vector<size_t> found = places_of(level);
  for (const size_t r : places_of(level))
    if (is_spread(r)) found.push_back(difference_of_[r]);
  return found;
}

Expr Online::terms_of_row(DType dtype) const {
  return loop::Cast::make(context_.arena, dtype,
                          loop::from_symbolic(context_.arena, nest_.row_extent()));
}

Expr Online::apply(ScalarOp op, std::vector<Expr> args) const {
  return loop::apply(context_.arena, op, std::move(args));
}

// -- loops

Reduced Online::emit(const std::vector<PassAxis>& axes, const ReduceLevel& reduce, Block& block) {
  reduce_ = &reduce;
  return over_axis(axes, 0, block);
}

Reduced Online::over_axis(const std::vector<PassAxis>& axes, size_t i, Block& block) {
  const PassAxis& axis = axes[i];
  loop::Arena& arena = context_.arena;
  const Expr begin = axis.begin != nullptr ? axis.begin : loop::int_constant(arena, 0);
  const Expr end = axis.end != nullptr ? axis.end : loop::from_symbolic(arena, axis.extent);
  if (i + 1 < axes.size())
    return over_blocks(axis, begin, end, sizes_of(axis, 1), block,
                       [&](const Reduced& carried, Expr from, Expr, Block& inner) {
                         inner.push_back(loop::Let::make(arena, axis.variable, from));
                         return merge(carried, over_axis(axes, i + 1, inner), inner);
                       });
  return over_blocks(axis, begin, end, sizes_of(axis, block_size(axis)), block,
                     [&](const Reduced& carried, Expr from, Expr to, Block& inner) {
                       return take_in(axis, carried, from, to, inner);
                     });
}

// Of blocks, of blocks of these, and so on.
std::vector<int64_t> Online::sizes_of(const PassAxis& axis, int64_t smallest) const {
  std::vector<int64_t> sizes = {smallest};
  const int64_t high = nest_.nest_axes().assumptions().range(axis.extent).high;
  while (sizes.size() < kMostLevels && high > sizes.back() * kBlocksTogether)
    sizes.push_back(sizes.back() * kBlocksTogether);
  return sizes;
}

int64_t Online::block_size(const PassAxis& axis) const {
  if (axis.mode.kind == loop::LoopKind::kVector) return kBlockElements;
  return std::max<int64_t>(1, nest_.schedule().rows);
}

// [begin, end) in blocks of the last size, each of them in blocks of the one before.
Reduced Online::over_blocks(const PassAxis& axis, Expr begin, Expr end,
                            const std::vector<int64_t>& sizes, Block& block, const TakeIn& take) {
  loop::Arena& arena = context_.arena;
  const Expr step = loop::int_constant(arena, sizes.back());
  const std::vector<int64_t> smaller(sizes.begin(), sizes.end() - 1);
  const Expr padded = loop::apply(arena, ScalarOp::kAdd,
                                  {loop::apply(arena, ScalarOp::kSub, {end, begin}),
                                   loop::int_constant(arena, sizes.back() - 1)});
  const Variable* number = Variable::make(arena, DType::kI64, arena.fresh_name("block"));
  return emit_reduce(
      arena, reducers_, number, loop::int_constant(arena, 0),
      loop::apply(arena, ScalarOp::kFloorDiv, {padded, step}), {}, block,
      [&](Block& inner, const Reduced& carried) {
        const Expr from = loop::apply(arena, ScalarOp::kAdd,
                                      {begin, loop::apply(arena, ScalarOp::kMul, {number, step})});
        const Expr to = loop::apply(arena, ScalarOp::kMin,
                                    {end, loop::apply(arena, ScalarOp::kAdd, {from, step})});
        if (smaller.empty()) return take(carried, from, to, inner);
        return merge(carried, over_blocks(axis, from, to, smaller, inner, take), inner);
      });
}

// All levels of one block.
Reduced Online::take_in(const PassAxis& axis, const Reduced& before, Expr begin, Expr end,
                        Block& block) {
  loop::Arena& arena = context_.arena;
  Reduced now = before;
  if (counts_) {
    const Expr terms = loop::Cast::make(arena, reducers_.back().dtypes()[0],
                                        loop::apply(arena, ScalarOp::kSub, {end, begin}));
    now.back() = reducers_.back().merge(before.back(), {terms});
  }
  for (int level = 0; level < levels_; ++level) {
    Reduced repaired = before;
    if (level > 0) repair(level, repaired, now, block);
    PassAxis part = nest_.pass_axis(axis);
    part.extent = block_size(axis);
    part.begin = begin;
    part.end = end;
    const Reduced taken = (*reduce_)(level, part, block);
    size_t next = 0;
    for (const size_t r : reducers_of(level))
      now[r] = reducers_[r].merge(repaired[r], taken[next++]);
  }
  return now;
}

Reduced Online::merge(const Reduced& left, const Reduced& right, Block& block) {
  Reduced now = left;
  if (counts_) now.back() = reducers_.back().merge(left.back(), right.back());
  for (int level = 0; level < levels_; ++level) {
    Reduced of_left = left, of_right = right;
    if (level > 0) {
      repair(level, of_left, now, block);
      repair(level, of_right, now, block);
    }
    for (const size_t r : reducers_of(level)) now[r] = reducers_[r].merge(of_left[r], of_right[r]);
  }
  return now;
}

// Squares around a mean that is off by c / n are c * c / n too many. Exponentials of a row of
// nothing but the lowest number are NaN, but were taken with another shift.
Reduced Online::settle(Reduced state, Block& block) {
  loop::Arena& arena = context_.arena;
  evaluator_.push(&block);
  for (size_t r = 0; r < reductions_.size(); ++r) {
    if (nodes_.level_of(reductions_[r]->result()) == 0) continue;
    const Expr sum = state[r][0];
    const auto number = [&](double value) {
      return loop::Constant::make_float(arena, sum->dtype, value);
    };
    for (const RepairStep& step : repair_of(r)) {
      if (step.kind != RepairKind::kScale || step.is_finite) continue;
      const Expr nan = number(std::numeric_limits<double>::quiet_NaN());
      const Expr is_nan = is_lowest(*step.reduction, state);
      state[r] = {evaluator_.let(apply(ScalarOp::kSelect, {is_nan, nan, state[r][0]}), "sum")};
    }
    if (!is_spread(r)) continue;
    const Expr difference = state[difference_of_[r]][0];
    const Expr excess = evaluator_.let(
        apply(ScalarOp::kMul,
              {difference, apply(ScalarOp::kDiv, {difference, terms_of_row(sum->dtype)})}),
        "excess");
    const Expr rest = apply(ScalarOp::kMax, {apply(ScalarOp::kSub, {sum, excess}), number(0.0)});
    // Neither where numbers are infinite nor where there are none.
    const Expr is_number =
        apply(ScalarOp::kLt, {excess, number(std::numeric_limits<double>::infinity())});
    state[r] = {evaluator_.let(apply(ScalarOp::kSelect, {is_number, rest, sum}), "squares")};
  }
  evaluator_.pop();
  return state;
}

// -- row values of a part of a row

// From now on row values below `level` are those that `state` gives.
void Online::define_rows(int level, const Reduced& state) {
  loop::Arena& arena = context_.arena;
  for (const Node* node : context_.group.nodes) {
    const Value* value = node->result();
    if (!is_reduction(*node)) {
      const bool is_ready =
          nodes_.per_row(*node) && nodes_.level_of(value) > 0 && nodes_.level_of(value) <= level;
      if (is_ready && needed_.count(node))
        evaluator_.define_row(value, evaluator_.evaluate_node(*node, nodes_.position(*node)));
      continue;
    }
    if (nodes_.level_of(value) >= level) continue;
    const size_t r = place_of(*node);
    Expr result = reducers_[r].result(state[r]);
    const auto instead = [&](Expr condition, double number) {
      const Expr constant = loop::Constant::make_float(arena, result->dtype, number);
      return loop::apply(arena, ScalarOp::kSelect, {condition, constant, result});
    };
    // Where nothing but the lowest number was seen: any shift, and no division by 0.
    if (shifts_.count(node)) result = instead(is_lowest(*node, state), 0.0);
    if (const auto divisor = divisors_.find(node); divisor != divisors_.end())
      result = instead(is_lowest(*divisor->second, state), 1.0);
    if (means_.count(node)) {  // a part's mean, not its share of that of the row
      const Expr terms = loop::Cast::make(arena, result->dtype, state.back()[0]);
      const Expr scale = loop::apply(arena, ScalarOp::kDiv, {terms_of_row(result->dtype), terms});
      result = loop::apply(arena, ScalarOp::kMul, {result, scale});
    }
    evaluator_.define_row(
        value, evaluator_.let(loop::Cast::make(arena, value->type().dtype, result), "row"));
  }
}

// The row values that repairs of a level are about, as `state` gives them; they stay defined so.
Online::Shifts Online::shifts(int level, const Reduced& state, Block& block) {
  evaluator_.push(&block);
  define_rows(level, state);
  Shifts found;
  for (const size_t r : places_of(level)) {
    found.emplace_back();
    for (const RepairStep& step : repair_of(r))
      found.back().push_back(evaluator_.evaluate(step.row.value, step.row.index));
  }
  evaluator_.pop();
  return found;
}

// The sums of a level as they would have been with the row values of `now`, which are defined then.
void Online::repair(int level, Reduced& state, const Reduced& now, Block& block) {
  const Shifts before = shifts(level, state, block), current = shifts(level, now, block);
  evaluator_.push(&block);
  const std::vector<size_t> places = places_of(level);
  for (size_t i = 0; i < places.size(); ++i) {
    if (is_spread(places[i]))
      spread(places[i], state, before[i][0], current[i][0]);
    else
      state[places[i]] = {scaled(places[i], state, before[i], current[i])};
  }
  evaluator_.pop();
}

void Online::spread(size_t r, Reduced& state, Expr before, Expr now) {
  loop::Arena& arena = context_.arena;
  Expr& sum = state[r][0];
  Expr& differences = state[difference_of_[r]][0];
  const DType dtype = sum->dtype;
  const Expr terms = loop::Cast::make(arena, dtype, state.back()[0]);
  const Expr shift =
      evaluator_.let(loop::Cast::make(arena, dtype, apply(ScalarOp::kSub, {before, now})), "shift");
  const Expr moved = evaluator_.let(apply(ScalarOp::kMul, {terms, shift}), "moved");
  const Expr twice = apply(ScalarOp::kAdd, {differences, differences});
  const Expr spread = apply(ScalarOp::kMul, {shift, apply(ScalarOp::kAdd, {twice, moved})});
  // Of no terms there is no mean, and what has overflown stays so.
  const Expr is_empty =
      apply(ScalarOp::kEq, {terms, loop::Constant::make_float(arena, dtype, 0.0)});
  const Expr stays =
      evaluator_.let(apply(ScalarOp::kOr, {is_empty, apply(ScalarOp::kIsInf, {sum})}), "stays");
  const auto added = [&](Expr value, Expr change) {
    return evaluator_.let(
        apply(ScalarOp::kSelect, {stays, value, apply(ScalarOp::kAdd, {value, change})}),
        "repaired");
  };
  sum = added(sum, spread);
  differences = added(differences, moved);
}

Expr Online::scaled(size_t r, const Reduced& state, const std::vector<Expr>& before,
                    const std::vector<Expr>& now) {
  loop::Arena& arena = context_.arena;
  const Expr sum = state[r][0];
  const fusion::Repair& repair = repair_of(r);
  Expr result = sum;
  for (size_t i = 0; i < repair.size(); ++i) {
    Expr factor = nullptr;
    if (repair[i].kind == RepairKind::kQuotient)
      factor = apply(ScalarOp::kDiv, {before[i], now[i]});
    else if (repair[i].kind == RepairKind::kReciprocal)
      factor = apply(ScalarOp::kDiv, {now[i], before[i]});
    else
      factor = apply(ScalarOp::kExp, {apply(ScalarOp::kSub, {before[i], now[i]})});
    result = apply(ScalarOp::kMul, {result, loop::Cast::make(arena, sum->dtype, factor)});
  }
  // Terms below the lowest number are 0 by any shift, or NaN where they are weighed so.
  for (const RepairStep& step : repair)
    if (step.kind == RepairKind::kScale)
      result = apply(ScalarOp::kSelect, {is_lowest(*step.reduction, state), sum, result});
  return evaluator_.let(result, "repaired");
}

// Whether a part of a row has shown nothing but the lowest number.
Expr Online::is_lowest(const Node& largest, const Reduced& state) const {
  const Expr extreme = state[place_of(largest)][0];
  const Expr lowest = loop::Constant::make_float(context_.arena, extreme->dtype,
                                                 -std::numeric_limits<double>::infinity());
  return loop::apply(context_.arena, ScalarOp::kEq, {extreme, lowest});
}

size_t Online::place_of(const Node& reduction) const {
  return static_cast<size_t>(std::find(reductions_.begin(), reductions_.end(), &reduction) -
                             reductions_.begin());
}

}  // namespace mlcc::lower
