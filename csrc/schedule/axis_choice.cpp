#include "schedule/axis_choice.h"

#include <algorithm>
#include <cstdlib>

namespace mlcc::schedule {
namespace {

// Bytes that a store moves, over those of a load: its line is read first.
constexpr double kWeightOfStore = 2;
// How many loads may rather be transposed in registers than one store scattered.
constexpr double kLoadsForStore = 8;
// What a byte counts that lies beside its neighbour along the vector axis, over one that does not.
constexpr double kWorthOfNeighbours = 2;
// What a store's bytes count in the order of axes, over a load's.
constexpr double kVoteOfStore = 0.25;

}  // namespace

double access_weight(const NestFacts& facts, const AccessPattern& access, const Hint& hint) {
  double bytes = static_cast<double>(access.element_bytes) * (access.is_store ? kWeightOfStore : 1);
  for (size_t axis = 0; axis < facts.axes.size(); ++axis)
    if (!access.strides[axis] || !access.strides[axis]->equals_constant(0))
      bytes *= static_cast<double>(std::max<int64_t>(1, facts.axes[axis].extent.evaluate(hint)));
  return bytes;
}

namespace {

// How well an axis serves as vector axis: bytes moved by accesses with stride 1, less those that
// would gather or scatter.
double axis_score(const NestFacts& facts, size_t axis, bool transposes, const Hint& hint) {
  double score = 0;
  for (const AccessPattern& access : facts.accesses) {
    const auto& stride = access.strides[axis];
    const double weight = access_weight(facts, access, hint);
    if (stride && stride->equals_constant(1))
      score += kWorthOfNeighbours * weight;
    else if (!stride || !stride->equals_constant(0))
      score -= access.is_store && transposes ? kLoadsForStore * weight : weight;
  }
  return score;
}

// Axes shorter than this (windows, steps between them) fill no vector.
constexpr int64_t kShortAxis = 8;

bool is_short(const Axis& axis) {
  const auto extent = axis.extent.as_constant();
  return extent && *extent < kShortAxis;
}

bool is_contiguous_somewhere(const NestFacts& facts, size_t axis) {
  return std::any_of(facts.accesses.begin(), facts.accesses.end(),
                     [&](const AccessPattern& access) {
                       return access.strides[axis] && access.strides[axis]->equals_constant(1);
                     });
}

// Whether another axis is better for that alone.
bool is_excluded(const NestFacts& facts, size_t axis) {
  if (!is_short(facts.axes[axis])) return false;
  for (size_t other = 0; other < facts.axes.size(); ++other) {
    if (facts.axes[other].reduced || is_short(facts.axes[other])) continue;
    if (facts.axes[axis].reduced || is_contiguous_somewhere(facts, other)) return true;
  }
  return false;
}

}  // namespace

int best_vector_axis(const NestFacts& facts, bool transposes, const Hint& hint) {
  int best = -1;
  double best_score = 0;
  for (size_t axis = 0; axis < facts.axes.size(); ++axis) {
    const double score = axis_score(facts, axis, transposes, hint);
    const bool is_ordered = facts.order != ReducedOrder::kFree;
    if (is_excluded(facts, axis)) continue;
    const bool is_scan = facts.can_scan && axis + 1 == facts.axes.size();
    if (is_ordered && ((facts.axes[axis].reduced && !is_scan) || score <= 0)) continue;
    if (best < 0 || score >= best_score) {  // the innermost of equals
      best = static_cast<int>(axis);
      best_score = score;
    }
  }
  return best;
}

int exchanged_axis(const NestFacts& facts, int vector_axis, int64_t shortest, const Hint& hint) {
  const auto extent = [&](int axis) {
    return facts.axes[static_cast<size_t>(axis)].extent.evaluate(hint);
  };
  if (extent(vector_axis) < shortest) return -1;
  for (int axis = 0; axis < static_cast<int>(facts.axes.size()); ++axis) {
    if (axis == vector_axis || extent(axis) < shortest) continue;
    for (const AccessPattern& access : facts.accesses) {
      const auto& along = access.strides[static_cast<size_t>(vector_axis)];
      const auto& across = access.strides[static_cast<size_t>(axis)];
      if (!access.is_store && across && across->equals_constant(1) && along &&
          !along->equals_constant(0))
        return axis;
    }
  }
  return -1;
}

int shared_axis(const NestFacts& facts, int vector_axis) {
  static constexpr int64_t kLoadsWorthSharing = 8;
  int axis = static_cast<int>(facts.axes.size()) - 1;
  while (axis >= 0 && (axis == vector_axis || facts.axes[static_cast<size_t>(axis)].reduced))
    --axis;
  if (axis < 0) return -1;
  int64_t shared = 0;
  for (const AccessPattern& access : facts.accesses) {
    const auto& along = access.strides[static_cast<size_t>(vector_axis)];
    const auto& across = access.strides[static_cast<size_t>(axis)];
    if (!along || !across) return -1;
    const bool is_contiguous = along->equals_constant(1);
    if (!is_contiguous && !along->equals_constant(0)) return -1;
    if (!access.is_store && is_contiguous && across->equals_constant(0)) ++shared;
  }
  return shared >= kLoadsWorthSharing ? axis : -1;
}

std::vector<int> order_of_outer_axes(const NestFacts& facts, int vector_axis, const Hint& hint) {
  std::vector<int> outer;
  for (int axis = 0; axis < static_cast<int>(facts.axes.size()); ++axis)
    if (axis != vector_axis && !facts.axes[static_cast<size_t>(axis)].reduced)
      outer.push_back(axis);
  // Each access votes for an axis as often as there are others along which its steps are shorter.
  std::vector<double> votes(facts.axes.size());
  for (const AccessPattern& access : facts.accesses) {
    const double weight = access_weight(facts, access, hint) * (access.is_store ? kVoteOfStore : 1);
    const auto step = [&](int axis) -> std::optional<int64_t> {
      const auto& stride = access.strides[static_cast<size_t>(axis)];
      return stride ? std::optional(std::abs(stride->evaluate(hint))) : std::nullopt;
    };
    for (const int axis : outer)
      for (const int other : outer)
        if (step(axis) && step(other) && *step(axis) > *step(other))
          votes[static_cast<size_t>(axis)] += weight;
  }
  std::vector<int> order = outer;
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return votes[static_cast<size_t>(a)] > votes[static_cast<size_t>(b)];
  });
  return order == outer ? std::vector<int>() : order;
}

}  // namespace mlcc::schedule
