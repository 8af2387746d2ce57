#include "runtime/arena_plan.h"

#include <algorithm>
#include <numeric>

namespace mlcc::runtime {
namespace {

struct Range {
  int64_t begin;
  int64_t end;
};

int64_t round_up(int64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

bool overlap_in_time(const ArenaRequest& a, const ArenaRequest& b) {
  return a.begin < b.end && b.begin < a.end;
}

// The start of the smallest gap between `taken` (sorted by begin) that holds `bytes`; behind all of
// them if none does.
int64_t tightest_gap(const std::vector<Range>& taken, int64_t bytes) {
  int64_t best = -1;
  int64_t best_size = INT64_MAX;
  int64_t top = 0;
  for (const Range& range : taken) {
    const int64_t gap = range.begin - top;
    if (gap >= bytes && gap < best_size) {
      best = top;
      best_size = gap;
    }
    top = std::max(top, range.end);
  }
  return best >= 0 ? best : top;
}

}  // namespace

ArenaLayout plan_arena(std::span<const ArenaRequest> requests) {
  ArenaLayout layout;
  layout.offsets.assign(requests.size(), 0);
  std::vector<size_t> order(requests.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return requests[a].bytes != requests[b].bytes ? requests[a].bytes > requests[b].bytes : a < b;
  });

  std::vector<size_t> placed;
  std::vector<Range> taken;
  for (size_t index : order) {
    const int64_t bytes = round_up(requests[index].bytes);
    if (bytes == 0) break;  // sorted: the rest is empty too
    taken.clear();
    for (size_t other : placed)
      if (overlap_in_time(requests[index], requests[other]))
        taken.push_back(
            {layout.offsets[other], layout.offsets[other] + round_up(requests[other].bytes)});
    std::sort(taken.begin(), taken.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    layout.offsets[index] = tightest_gap(taken, bytes);
    layout.bytes = std::max(layout.bytes, layout.offsets[index] + bytes);
    placed.push_back(index);
  }
  return layout;
}

}  // namespace mlcc::runtime
