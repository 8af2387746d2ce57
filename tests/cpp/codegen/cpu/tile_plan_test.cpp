#include "codegen/cpu/tile_plan.h"

#include <gtest/gtest.h>

namespace mlcc::codegen::cpu {
namespace {

TEST(TilePlan, sets_of_sums_hide_their_latency) {
  const RegisterNeeds wide{.registers = 32}, narrow{.registers = 16};
  EXPECT_EQ(count_sets(12, 2, 4, wide), 1);
  EXPECT_EQ(count_sets(8, 2, 4, wide), 1);
  EXPECT_EQ(count_sets(6, 2, 4, wide), 2);  // one would hide it; two err less
  EXPECT_EQ(count_sets(5, 2, 4, wide), 2);
  EXPECT_EQ(count_sets(7, 2, 6, wide), 2);  // 28 of 29 registers that are left
  EXPECT_EQ(count_sets(8, 2, 6, wide), 1);  // 32 do not fit
  EXPECT_EQ(count_sets(1, 2, 4, wide), 8);
  EXPECT_EQ(count_sets(6, 2, 4, narrow), 1);
  EXPECT_EQ(count_sets(3, 2, 4, narrow), 2);
}

// As steps of depth do that stand together, which come in powers of two.
TEST(TilePlan, sets_are_powers_of_two) {
  const RegisterNeeds wide{.registers = 32}, narrow{.registers = 16};
  EXPECT_EQ(count_sets(2, 2, 6, wide), 4);    // five would be enough, seven would fit
  EXPECT_EQ(count_sets(2, 2, 4, narrow), 2);  // three are wanted, and would fit
  EXPECT_EQ(count_sets(1, 2, 4, narrow), 4);  // six are wanted, and would fit
  EXPECT_EQ(count_sets(20, 2, 4, narrow), 1);
}

}  // namespace
}  // namespace mlcc::codegen::cpu
