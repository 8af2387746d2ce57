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

}  // namespace
}  // namespace mlcc::fusion
