#include "lower/element/segments.h"

#include <algorithm>
#include <optional>

namespace mlcc::lower {
namespace {

using schedule::Axis;

// More loops than these would cost more to compile and to fetch than their masks cost.
constexpr size_t kMostEnds = 8;
constexpr size_t kMostLoops = 9;
// Of all loops together, where each computes all that one would.
constexpr int64_t kMostOps = 288;
// Windows longer than this are decided at hardly any place of a row.
constexpr int64_t kLongestWindow = 64;

// A place in the operand: scale * axis + rest, low <= rest <= high over all other axes.
struct Place {
  int64_t scale;
  SymExpr low, high;
};

std::optional<Place> place_along(const SymExpr& at, const NestAxes& axes, const Axis& axis) {
  const auto linear = at.linear_in(axis.name);
  if (!linear) return std::nullopt;
  const auto scale = linear->coefficient.as_constant();
  if (!scale || *scale == 0) return std::nullopt;
  Place place{*scale, linear->rest, linear->rest};
  for (const Axis& other : axes.axes()) {
    const auto part = place.low.linear_in(other.name);
    if (!part) return std::nullopt;
    const auto step = part->coefficient.as_constant();
    const auto extent = other.extent.as_constant();
    if (!step) return std::nullopt;
    if (*step == 0) continue;
    if (!extent || *extent > kLongestWindow) return std::nullopt;
    const SymExpr reach = *step * (*extent - 1);
    const SymExpr high = place.high.linear_in(other.name)->rest;
    place.low = part->rest + (*step < 0 ? reach : SymExpr(0));
    place.high = high + (*step < 0 ? SymExpr(0) : reach);
  }
  return place;
}

SymExpr ceil_divide(const SymExpr& a, int64_t b) {
  return b == 1 ? a : SymExpr::floordiv(a + (b - 1), b);
}

// Puts `end` into its place among `ends`, unless it is known to cut nothing off. Of ends whose
// order only the sizes tell, numbers come first.
void insert(SymExpr end, const SymExpr& extent, const Assumptions& assumptions,
            std::vector<SymExpr>& ends) {
  end = assumptions.simplify(end);
  if (assumptions.is_nonnegative(0 - end) || assumptions.is_nonnegative(end - extent)) return;
  auto before = ends.begin();
  for (; before != ends.end(); ++before) {
    if (assumptions.is_equal(*before, end)) return;
    if (assumptions.is_less(*before, end)) continue;
    if (assumptions.is_less(end, *before) || end.is_constant()) break;
  }
  ends.insert(before, std::move(end));
}

// Moves the first and last ends to multiples of a vector where less than one lies beyond them.
void widen_borders(std::vector<SymExpr>& ends, const SymExpr& extent, int64_t width) {
  const auto first = ends.empty() ? std::nullopt : ends.front().as_constant();
  if (first.value_or(width) < width) {
    ends.erase(ends.begin());
    const auto next = ends.empty() ? extent.as_constant() : ends.front().as_constant();
    if (next.value_or(width + 1) > width) ends.insert(ends.begin(), width);
  }
  const int64_t last = ends.empty() ? 0 : ends.back().as_constant().value_or(0);
  const int64_t end = extent.as_constant().value_or(0);
  if (last == 0 || end - last >= width || last % width == 0) return;
  ends.pop_back();
  const int64_t moved = last / width * width;
  const int64_t previous = ends.empty() ? 0 : ends.back().as_constant().value_or(moved);
  if (moved > previous) ends.emplace_back(moved);
}

// Of one axis; empty where there is nothing to decide, or too much.
std::vector<SymExpr> ends_along(const Recording& recording, const NestAxes& axes,
                                const Axis& axis) {
  std::vector<SymExpr> ends;
  for (const Recording::Range& range : recording.ranges) {
    std::optional<Place> place = place_along(axes.map(range.at), axes, axis);
    if (!place) continue;
    SymExpr begin = axes.map(range.begin), end = axes.map(range.end);
    if (place->scale < 0) {  // begin <= at < end is 1 - end <= -at < 1 - begin
      place = Place{-place->scale, SymExpr(0) - place->high, SymExpr(0) - place->low};
      const SymExpr flipped = 1 - end;
      end = 1 - begin;
      begin = flipped;
    }
    insert(ceil_divide(begin - place->low, place->scale), axis.extent, axes.assumptions(), ends);
    insert(ceil_divide(end - place->high, place->scale), axis.extent, axes.assumptions(), ends);
    if (ends.size() > kMostEnds) return {};
  }
  return ends;
}

}  // namespace

std::vector<Cut> find_cuts(const Recording& recording, const NestAxes& axes,
                           const schedule::Schedule& schedule) {
  if (recording.ranges.empty() || schedule.vector_axis < 0) return {};
  const auto vector_axis = static_cast<size_t>(schedule.vector_axis);
  const bool has_reduced = std::any_of(axes.axes().begin(), axes.axes().end(),
                                       [](const Axis& other) { return other.reduced; });
  size_t most_loops = kMostLoops;
  if (has_reduced)
    most_loops =
        std::min(most_loops, static_cast<size_t>(kMostOps / std::max<int64_t>(1, recording.ops)));
  std::vector<Cut> cuts;
  size_t loops = 1;
  const auto add = [&](size_t axis, std::vector<SymExpr> ends) {
    if (ends.empty() || loops * (ends.size() + 1) > most_loops) return;
    loops *= ends.size() + 1;
    cuts.push_back({axis, std::move(ends)});
  };
  if (const Axis& axis = axes.axes()[vector_axis]; !axis.reduced) {
    std::vector<SymExpr> ends = ends_along(recording, axes, axis);
    if (has_reduced) widen_borders(ends, axis.extent, schedule.width);
    add(vector_axis, std::move(ends));
  }
  for (size_t i = axes.axes().size(); i-- > 0;)
    if (i != vector_axis && !axes.axes()[i].reduced)
      add(i, ends_along(recording, axes, axes.axes()[i]));
  return cuts;
}

}  // namespace mlcc::lower
