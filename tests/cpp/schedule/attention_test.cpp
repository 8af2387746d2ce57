#include "schedule/attention.h"

#include <gtest/gtest.h>

namespace mlcc::schedule {
namespace {

TEST(Attention, tiles_of_unknown_rows_fill_those_of_two_of_the_largest_ones) {
  for (const int64_t bits : {128, 256, 512}) {
    Machine machine;
    machine.vector_bits = bits;
    AttentionFacts facts;
    facts.expected_rows = facts.keys = 64;
    facts.columns = facts.panel = 32;
    const AttentionTiles tiles = choose_attention(facts, machine);
    EXPECT_GT(tiles.rows.size(), 3U);
    for (const int64_t height : tiles.rows) EXPECT_EQ(2 * tiles.rows.front() % height, 0);
    EXPECT_EQ(tiles.tiles % 2, 0);
  }
}

}  // namespace
}  // namespace mlcc::schedule
