#include "fusion/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mlcc::fusion {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

OrderedUnit kernel(std::set<int> reads, int last, int64_t work = 10) {
  return {std::move(reads), last, work};
}

OrderedUnit call(std::set<int> reads, int last) { return {std::move(reads), last, 0}; }

TEST(Order, UnitsComeInTheOrderOfTheirLastNodes) {
  EXPECT_THAT(find_waves({kernel({}, 2), kernel({}, 1), kernel({1}, 3)}, {}),
              ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(2)));
}

TEST(Order, SmallKernelsThatDoNotDependOnEachOtherRunTogether) {
  EXPECT_THAT(find_waves({kernel({}, 0), kernel({0}, 1), kernel({}, 2), kernel({2}, 3)}, {10, 100}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
}

TEST(Order, LargeKernelsAndCallsRunAlone) {
  EXPECT_THAT(find_waves({kernel({}, 0, 11), kernel({}, 1), call({}, 2), kernel({}, 3)}, {10, 100}),
              ElementsAre(ElementsAre(0), ElementsAre(1, 3), ElementsAre(2)));
}

TEST(Order, AWaveIsBounded) {
  EXPECT_THAT(find_waves({kernel({}, 0), kernel({}, 1), kernel({}, 2, 3)}, {10, 15}),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1)));
}

TEST(Order, WhatWaitsForItselfIsLeftOut) {
  EXPECT_THAT(find_waves({kernel({1}, 0), kernel({0}, 1)}, {10, 100}), IsEmpty());
}

OrderedUnit begins(std::set<int> reads, int last, int64_t bytes = 8) {
  OrderedUnit unit = call(std::move(reads), last);
  unit.turn = Turn::kEarly;
  unit.begun_bytes = bytes;
  return unit;
}

OrderedUnit waits(std::set<int> reads, int last) {
  OrderedUnit unit = call(std::move(reads), last);
  unit.turn = Turn::kLate;
  return unit;
}

TEST(Order, WorkOfAGroupBeginsEarlyAndIsWaitedForLate) {
  // A kernel, work on its result, what waits for it and reads it; a kernel and work apart.
  const std::vector<OrderedUnit> units = {kernel({}, 0),  begins({0}, 1),   waits({1}, 2),
                                          kernel({2}, 3), kernel({}, 4),    begins({1}, 5),
                                          waits({5}, 6),  kernel({6, 4}, 7)};
  EXPECT_THAT(find_waves(units, {}),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(5), ElementsAre(4),
                          ElementsAre(2), ElementsAre(3), ElementsAre(6), ElementsAre(7)));
}

TEST(Order, NotAllWorkOfAGroupIsUnderWayAtOnce) {
  constexpr int64_t kHalf = kBytesUnderWay / 2;
  // Three layers that are gathered: begun, waited for, read.
  std::vector<OrderedUnit> units;
  for (int layer = 0; layer < 3; ++layer) {
    const int at = 3 * layer;
    units.push_back(begins(layer > 0 ? std::set<int>{at - 3} : std::set<int>{}, at, kHalf));
    units.push_back(waits({at}, at + 1));
    units.push_back(
        kernel(layer > 0 ? std::set<int>{at - 1, at + 1} : std::set<int>{at + 1}, at + 2));
  }
  EXPECT_THAT(find_waves(units, {}), ElementsAre(ElementsAre(0), ElementsAre(3), ElementsAre(1),
                                                 ElementsAre(6), ElementsAre(2), ElementsAre(4),
                                                 ElementsAre(5), ElementsAre(7), ElementsAre(8)));
  units[3].begun_bytes = units[6].begun_bytes = 2 * kBytesUnderWay;
  EXPECT_THAT(find_waves(units, {}), ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(3),
                                                 ElementsAre(2), ElementsAre(4), ElementsAre(6),
                                                 ElementsAre(5), ElementsAre(7), ElementsAre(8)));
}

TEST(Order, NoKernelIsDelayedPastWhatWaits) {
  OrderedUnit large = kernel({}, 0);
  large.result_bytes = 1000;
  const std::vector<OrderedUnit> units = {large, kernel({}, 1), waits({}, 2), kernel({0, 2}, 3)};
  Waves waves = find_waves(units, {});
  delay_kernels(units, {}, waves);
  EXPECT_THAT(waves, ElementsAre(ElementsAre(1), ElementsAre(0), ElementsAre(2), ElementsAre(3)));
}

OrderedUnit walker(std::set<int> reads, int last, std::vector<int> values, int64_t work = 1000) {
  return {std::move(reads), last, work, 0, {}, std::move(values)};
}

TEST(Order, LargeKernelsThatWalkOverTheSameMemoryTakeTurns) {
  const WaveLimits limits = {10, 100};
  const std::vector<OrderedUnit> units = {walker({}, 0, {0, 1}), walker({}, 1, {2, 1}),
                                          walker({}, 2, {1}), walker({2}, 3, {1})};
  const Waves waves = find_waves(units, limits);
  EXPECT_THAT(waves, ElementsAre(ElementsAre(0, 1), ElementsAre(2), ElementsAre(3)));
  EXPECT_TRUE(take_turns(units, waves[0], limits));
  EXPECT_FALSE(take_turns(units, waves[1], limits));
  // Not over other memory, nor past another kernel; small ones run at the same time.
  EXPECT_THAT(find_waves({walker({}, 0, {0}), walker({}, 1, {1}), walker({}, 2, {0})}, limits),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2)));
  const std::vector<OrderedUnit> small = {walker({}, 0, {0}, 5), walker({}, 1, {0}, 5)};
  EXPECT_FALSE(take_turns(small, find_waves(small, limits)[0], limits));
}

// Writes `bytes` and reads values.
OrderedUnit writer(std::set<int> reads, int last, int64_t bytes, std::vector<int> values) {
  return {std::move(reads), last, 0, bytes, std::move(values)};
}

std::vector<int> delayed(const std::vector<OrderedUnit>& units,
                         const std::vector<int64_t>& value_bytes) {
  Waves waves = find_waves(units, {});
  delay_kernels(units, value_bytes, waves);
  std::vector<int> order;
  for (const std::vector<int>& wave : waves) order.insert(order.end(), wave.begin(), wave.end());
  return order;
}

TEST(Order, WhatWritesMoreThanItFreesWaitsForItsReader) {
  // 0 is read by 3 alone. What it reads, value 0, is read by 2 as well.
  const std::vector<OrderedUnit> units = {writer({}, 0, 100, {0}), call({}, 1),
                                          writer({}, 2, 0, {0}), writer({0}, 3, 0, {1})};
  EXPECT_THAT(delayed(units, {1000, 100}), ElementsAre(1, 2, 0, 3));
}

TEST(Order, WhatFreesMoreThanItWritesDoesNotWait) {
  const std::vector<OrderedUnit> units = {writer({}, 0, 100, {0}), call({}, 1),
                                          writer({0}, 2, 0, {1})};
  EXPECT_THAT(delayed(units, {1000, 100}), ElementsAre(0, 1, 2));
  EXPECT_THAT(delayed(units, {50, 100}), ElementsAre(1, 0, 2));
}

TEST(Order, KernelsOfAChainWaitTogether) {
  const std::vector<OrderedUnit> units = {writer({}, 0, 100, {0}), writer({0}, 1, 200, {1}),
                                          call({}, 2), call({1}, 3)};
  EXPECT_THAT(delayed(units, {0, 100, 200}), ElementsAre(2, 0, 1, 3));
}

}  // namespace
}  // namespace mlcc::fusion
