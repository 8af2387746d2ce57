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
  for (const DType accumulator : {DType::kF32, DType::kF64}) {
    for (const int64_t width : {16, 64, 128, 144, 160, 256}) {
      const int64_t size = dtype_size(accumulator), panel = 256 / size;
      AttentionFacts facts;
      facts.expected_rows = facts.keys = 300;
      facts.panel = panel;
      facts.accumulator = accumulator;
      facts.row_bytes = (3 * width + 2 * panel) * size;
      facts.key_bytes = (3 * width + panel) * size;
      const AttentionGradientTiles tiles = choose_attention_gradients(facts, machine);
      EXPECT_EQ(tiles.products.keys % panel, 0);
      EXPECT_EQ(tiles.products.keys % tiles.rows, 0);
      EXPECT_EQ(tiles.queries % tiles.rows, 0);
      const int64_t sums = 2 * (tiles.products.keys + panel) * size;
      EXPECT_LE(tiles.products.keys * facts.key_bytes +
                    (tiles.queries + 2 * tiles.products.rows.front()) * (facts.row_bytes + sums),
                512 << 10)
          << width << " numbers of " << size << " bytes";
    }
  }
}

}  // namespace
}  // namespace mlcc::schedule
