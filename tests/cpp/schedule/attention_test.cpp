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

// Blocks are multiples of tiles' rows and of panels: of wide ones as long as that fits.
TEST(Attention, blocks_of_gradients_fit_a_stack) {
  Machine machine;
  machine.has_scarce_loads = true;
  machine.second_level_bytes = 2 << 20;
  for (const int64_t panel : {32, 64}) {
    for (const int64_t width : {16, 64, 128, 256}) {
      AttentionFacts facts;
      facts.expected_rows = facts.keys = 300;
      facts.panel = panel;
      facts.row_bytes = (3 * width + 2 * panel) * 4;
      facts.key_bytes = (3 * width + panel) * 4;
      const AttentionGradientTiles tiles = choose_attention_gradients(facts, machine);
      EXPECT_EQ(tiles.products.keys % panel, 0);
      EXPECT_EQ(tiles.products.keys % tiles.rows, 0);
      EXPECT_EQ(tiles.queries % tiles.rows, 0);
      const int64_t sums = 2 * (tiles.products.keys + panel) * 4;
      EXPECT_LE(tiles.products.keys * facts.key_bytes +
                    (tiles.queries + 2 * tiles.products.rows.front()) * (facts.row_bytes + sums),
                512 << 10)
          << panel << " " << width;
    }
  }
}

}  // namespace
}  // namespace mlcc::schedule
