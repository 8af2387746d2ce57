#include "runtime/arena_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace mlcc::runtime {
namespace {

int64_t peak_of_live_bytes(const std::vector<ArenaRequest>& requests, int32_t steps) {
  int64_t peak = 0;
  for (int32_t step = 0; step < steps; ++step) {
    int64_t live = 0;
    for (const ArenaRequest& request : requests)
      if (request.begin <= step && step < request.end)
        live += (request.bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
    peak = std::max(peak, live);
  }
  return peak;
}

void expect_valid(const std::vector<ArenaRequest>& requests, const ArenaLayout& layout) {
  ASSERT_EQ(layout.offsets.size(), requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(layout.offsets[i] % kArenaAlignment, 0);
    EXPECT_GE(layout.offsets[i], 0);
    EXPECT_LE(layout.offsets[i] + requests[i].bytes, layout.bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool in_time =
          requests[i].begin < requests[j].end && requests[j].begin < requests[i].end;
      const bool in_space = layout.offsets[i] < layout.offsets[j] + requests[j].bytes &&
                            layout.offsets[j] < layout.offsets[i] + requests[i].bytes;
      EXPECT_FALSE(in_time && in_space) << "requests " << i << " and " << j;
    }
  }
}

TEST(ArenaPlan, ReusesMemoryOfDeadBuffers) {
  const std::vector<ArenaRequest> requests = {{1024, 0, 2}, {1024, 1, 3}, {1024, 2, 4}};
  const ArenaLayout layout = plan_arena(requests);
  expect_valid(requests, layout);
  EXPECT_EQ(layout.bytes, 2048);
  EXPECT_EQ(layout.offsets[0], layout.offsets[2]);
}

TEST(ArenaPlan, EmptyBuffersTakeNoRoom) {
  const std::vector<ArenaRequest> requests = {{0, 0, 9}, {100, 0, 9}, {0, 0, 9}};
  const ArenaLayout layout = plan_arena(requests);
  expect_valid(requests, layout);
  EXPECT_EQ(layout.bytes, 128);
  EXPECT_EQ(plan_arena({}).bytes, 0);
}

TEST(ArenaPlan, TakesTheTightestGap) {
  // Two gaps, of 192 and 64 bytes, are open when the last buffer comes.
  const std::vector<ArenaRequest> requests = {{1024, 0, 10}, {192, 0, 5},  {512, 0, 10},
                                              {64, 0, 5},    {256, 0, 10}, {64, 5, 10}};
  const ArenaLayout layout = plan_arena(requests);
  expect_valid(requests, layout);
  EXPECT_EQ(layout.bytes, 1024 + 192 + 512 + 64 + 256);
}

TEST(ArenaPlan, RandomRequestsNeverOverlapAndStayNearThePeak) {
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    constexpr int32_t kSteps = 40;
    std::vector<ArenaRequest> requests;
    const size_t count = 1 + random() % 60;
    for (size_t i = 0; i < count; ++i) {
      const auto begin = static_cast<int32_t>(random() % kSteps);
      const auto end = static_cast<int32_t>(begin + 1 + random() % 12);
      const int64_t bytes =
          random() % 8 == 0 ? 0 : static_cast<int64_t>(random() % (1 << (random() % 20)));
      requests.push_back({bytes, begin, end});
    }
    const ArenaLayout layout = plan_arena(requests);
    expect_valid(requests, layout);
    EXPECT_LE(layout.bytes, 2 * peak_of_live_bytes(requests, kSteps + 12)) << "round " << round;
  }
}

}  // namespace
}  // namespace mlcc::runtime
