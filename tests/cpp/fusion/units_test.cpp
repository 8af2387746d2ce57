#include "fusion/units.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fusion/fusion.h"
#include "graph/text.h"

namespace mlcc::fusion {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(Units, OneDependsOnWhatThoseItReadsDo) {
  std::vector<UnitState> units(4);
  for (int i = 0; i < 4; ++i)
    units[static_cast<size_t>(i)].first = units[static_cast<size_t>(i)].last = i;
  units[1].reads = {0};
  units[3].reads = {1};
  EXPECT_TRUE(depends_on(units, 3, 0));
  EXPECT_TRUE(depends_on(units, 2, 2));
  EXPECT_FALSE(depends_on(units, 3, 2));
}

TEST(CallOrder, CallsWithEffectsKeepTheirOrder) {
  CallOrder order;
  EXPECT_THAT(order.add(0, {.random = true}), IsEmpty());
  EXPECT_THAT(order.add(1, {}), IsEmpty());
  EXPECT_THAT(order.add(2, {.mutates = {0}}), ElementsAre(0));
  EXPECT_THAT(order.add(3, {.effects = true}), ElementsAre(2));
  EXPECT_THAT(order.add(4, {.random = true}), ElementsAre(3));
}

TEST(CallOrder, WorkOfAGroupBeginsInOneOrderAndIsWaitedForBeforeOtherEffects) {
  const graph::ExternFacts begins = {.effects = true, .begins = true};
  const graph::ExternFacts waits = {.effects = true, .aliases = true, .waits = true};
  CallOrder order;
  EXPECT_THAT(order.add(0, begins), IsEmpty());
  EXPECT_THAT(order.add(1, waits), IsEmpty());  // its operand says of what
  EXPECT_THAT(order.add(2, {.random = true}), IsEmpty());
  EXPECT_THAT(order.add(3, begins), ElementsAre(0));
  EXPECT_THAT(order.add(4, {.mutates = {0}}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(order.add(5, waits), ElementsAre(4));
  EXPECT_THAT(order.add(6, begins), ElementsAre(3, 4));
  EXPECT_THAT(order.add(7, {.effects = true}), ElementsAre(4, 5, 6));
}

TEST(CallOrder, ACallThatBeginsAndWaitsHasItsPlace) {
  const graph::ExternFacts both = {.effects = true, .begins = true, .waits = true};
  CallOrder order;
  order.add(0, both);
  EXPECT_THAT(order.add(1, both), ElementsAre(0));
  EXPECT_EQ(turn_of(both), Turn::kUsual);
  EXPECT_EQ(turn_of({.begins = true}), Turn::kEarly);
  EXPECT_EQ(turn_of({.waits = true}), Turn::kLate);
  EXPECT_EQ(turn_of({.effects = true}), Turn::kUsual);
}

std::vector<std::string> order_of(const FusionPlan& plan) {
  std::vector<std::string> names;
  for (const Unit& unit : plan.order)
    names.push_back(
        unit.group < 0
            ? unit.node->extern_call().name
            : "kernel of " +
                  std::to_string(plan.groups[static_cast<size_t>(unit.group)].nodes.size()));
  return names;
}

// The product and what follows it do not need the sum of the processes: they are computed
// meanwhile, by a kernel of their own.
TEST(Units, KernelsRunWhileOtherProcessesAreWaitedFor) {
  const auto graph = graph::parse_graph(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = exp %x
  %1: f32[8, 8] = extern "my.begin.default"(%0) effects begins
  %2: f32[8, 8] = extern "my.wait.default"(%1) effects aliases waits
  %3: f32[8, 8] = contract %x, %y {lhs = [d0, d2], reduced = [8], rhs = [d2, d1]}
  %4: f32[8, 8] = add %3, %2
  return %4
})");
  EXPECT_THAT(order_of(plan_fusion(*graph, {})),
              ElementsAre("kernel of 1", "my.begin.default", "kernel of 1", "my.wait.default",
                          "kernel of 1"));
}

}  // namespace
}  // namespace mlcc::fusion
