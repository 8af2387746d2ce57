#include "schedule/winograd.h"

#include <gtest/gtest.h>

namespace mlcc::schedule {
namespace {

Machine machine_of(int64_t vector_bits, int64_t threads = 1, bool has_scarce_loads = false) {
  Machine machine;
  machine.vector_bits = vector_bits;
  machine.threads = threads;
  machine.has_scarce_loads = has_scarce_loads;
  machine.transforms_images = true;
  return machine;
}

WinogradFacts facts_of(int64_t images, int64_t side, int64_t channels, int64_t columns) {
  WinogradFacts facts;
  facts.tiles = images * ((side + 1) / 2) * ((side + 1) / 2);
  facts.are_tiles_known = true;
  facts.pixels = images * side * side;
  facts.channels = channels;
  facts.columns = columns;
  return facts;
}

TEST(Winograd, local_buffers_fit_a_stack) {
  for (const int64_t bits : {512, 256, 128})
    for (const bool is_scarce : {false, true})
      for (const bool is_known : {true, false})
        for (const int64_t side : {2, 7, 14, 28, 56, 123})
          for (const int64_t channels : {1, 33, 64, 256, 1000}) {
            WinogradFacts facts = facts_of(2, side, channels, 200);
            facts.are_tiles_known = is_known;
            const WinogradTiles tiles = choose_winograd(facts, machine_of(bits, 2, is_scarce));
            const int64_t of_matrices =
                16 * (tiles.computed() * (tiles.channels + tiles.columns) + 2 * tiles.kMargin);
            EXPECT_LE((of_matrices + 4 * tiles.columns) * 4, kMostLocalBytes) << tiles.str();
            EXPECT_GE(tiles.channels, 1);
          }
}

TEST(Winograd, blocks_and_panels_leave_threads_their_parts) {
  const auto iterations = [](const WinogradFacts& facts, const WinogradTiles& tiles) {
    const int64_t panels = (facts.columns + tiles.columns - 1) / tiles.columns;
    return (facts.tiles + tiles.tiles - 1) / tiles.tiles *
           ((panels + tiles.panels - 1) / tiles.panels);
  };
  const WinogradFacts few = facts_of(1, 14, 256, 256);
  EXPECT_EQ(iterations(few, choose_winograd(few, machine_of(512, 1))), 1);
  EXPECT_GE(iterations(few, choose_winograd(few, machine_of(512, 2))), 8);
}

TEST(Winograd, is_worth_its_transforms) {
  for (const int64_t bits : {512, 256}) {
    const auto is_worth = [&](const WinogradFacts& facts) {
      return transformed_columns(facts, machine_of(bits)) > 0;
    };
    EXPECT_TRUE(is_worth(facts_of(1, 56, 64, 64)));
    EXPECT_TRUE(is_worth(facts_of(1, 28, 128, 128)));
    EXPECT_TRUE(is_worth(facts_of(8, 7, 512, 512)));
    EXPECT_FALSE(is_worth(facts_of(1, 224, 3, 64)));
    EXPECT_FALSE(is_worth(facts_of(1, 112, 16, 16)));
    EXPECT_FALSE(is_worth(facts_of(1, 2, 512, 512)));
    EXPECT_FALSE(is_worth(facts_of(1, 1, 64, 64)));
  }
  EXPECT_EQ(transformed_columns(facts_of(1, 56, 64, 64), machine_of(0)), 0);
  Machine direct = machine_of(512);
  direct.transforms_images = false;
  EXPECT_EQ(transformed_columns(facts_of(1, 56, 64, 64), direct), 0);
}

TEST(Winograd, panels_are_whole_tiles) {
  EXPECT_TRUE(has_winograd(32, machine_of(512)));
  EXPECT_TRUE(has_winograd(64, machine_of(512)));
  EXPECT_FALSE(has_winograd(48, machine_of(512)));
  EXPECT_TRUE(has_winograd(16, machine_of(256)));
  EXPECT_FALSE(has_winograd(64, machine_of(256)));
  WinogradFacts facts = facts_of(1, 14, 64, 64);
  facts.panel = 64;
  EXPECT_EQ(choose_winograd(facts, machine_of(512)).columns, 64);
}

}  // namespace
}  // namespace mlcc::schedule
