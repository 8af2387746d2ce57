#include "schedule/contraction.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace mlcc::schedule {
namespace {

ContractionFacts facts_of(int64_t rows, int64_t columns, int64_t depth) {
  ContractionFacts facts;
  facts.rows = facts.expected_rows = rows;
  facts.columns = columns;
  facts.depth = facts.row_terms = depth;
  return facts;
}

Machine machine_of(int64_t vector_bits) {
  Machine machine;
  machine.vector_bits = vector_bits;
  return machine;
}

TEST(Contraction, tiles_fill_three_quarters_of_the_registers) {
  EXPECT_EQ(choose_tiles(facts_of(1200, 3072, 768), machine_of(512)).rows,
            std::vector<int64_t>{12});
  EXPECT_EQ(tile_columns(machine_of(512), DType::kF32), 32);
  EXPECT_EQ(choose_tiles(facts_of(1200, 3072, 768), machine_of(256)).rows, std::vector<int64_t>{6});
  EXPECT_EQ(tile_columns(machine_of(256), DType::kF32), 16);
  EXPECT_EQ(choose_tiles(facts_of(1200, 3072, 768), machine_of(128)).rows,
            std::vector<int64_t>{12});
  EXPECT_EQ(tile_columns(machine_of(128), DType::kF32), 8);
  EXPECT_EQ(tile_columns(machine_of(512), DType::kF64), 16);
  EXPECT_EQ(tile_columns(machine_of(0), DType::kF32), 0);
}

TEST(Contraction, few_rows_are_computed_twice) {
  for (int64_t rows = 1; rows <= 500; ++rows) {
    const int64_t tile = choose_tiles(facts_of(rows, 64, 64), machine_of(512)).rows.front();
    EXPECT_LE(tile, std::min<int64_t>(rows, 12));
    const auto computed = [rows](int64_t height) { return (rows + height - 1) / height * height; };
    EXPECT_LE(computed(tile), computed(std::min<int64_t>(rows, 12))) << rows << " rows";
    if (rows < 64) continue;
    EXPECT_LE(computed(tile) * 100, rows * 108) << rows << " rows";
  }
}

TEST(Contraction, rows_that_are_computed_are_counted) {
  EXPECT_EQ(computed_rows(14, machine_of(256)), 15);
  EXPECT_EQ(computed_rows(14, machine_of(512)), 14);
  EXPECT_EQ(computed_rows(49, machine_of(256)), 50);
}

// 512 rows of 16 registers: 86 tiles of 6 rows cost less than 128 of 4, which compute fewer.
TEST(Contraction, loads_count_where_registers_are_few) {
  const HeightCosts costs = height_costs(machine_of(256), kVectorsOfTile);
  EXPECT_LT(86 * costs.of(6), 128 * costs.of(4));
  EXPECT_EQ(height_costs(machine_of(512), kVectorsOfTile).of(12), 12);
}

TEST(Contraction, unknown_rows_have_tiles_of_each_height) {
  for (const int64_t bits : {128, 256, 512}) {
    const ContractionTiles tiles = choose_tiles(facts_of(0, 64, 64), machine_of(bits));
    for (int64_t rows = 1; rows <= tiles.rows.front(); ++rows)
      EXPECT_EQ(std::ranges::count(tiles.rows, rows), 1);
    EXPECT_TRUE(std::is_sorted(tiles.rows.rbegin(), tiles.rows.rend()));
  }
}

// Panels of four vectors: for rows that are worth reading them for few at a time, where they stay
// in a part of a second-level cache or take turns, and not many columns are filled up.
TEST(Contraction, tiles_are_wide_where_loads_are_scarce) {
  Machine machine = machine_of(512);
  EXPECT_EQ(panel_columns({128, 768, 768}, DType::kF32, machine), 32);
  machine.has_scarce_loads = true;
  EXPECT_EQ(panel_columns({128, 768, 768}, DType::kF32, machine), 64);
  EXPECT_EQ(panel_columns({128, 768, 768}, DType::kF64, machine), 32);
  EXPECT_EQ(panel_columns({12, 768, 768}, DType::kF32, machine), 32);
  EXPECT_EQ(panel_columns({128, 768, 8192}, DType::kF32, machine), 32);
  EXPECT_EQ(panel_columns({512, 768, 8192}, DType::kF32, machine), 64);
  EXPECT_EQ(panel_columns({512, 768, 8192, true}, DType::kF32, machine), 32) << "no turns";
  EXPECT_EQ(panel_columns({512, 768, 768, true}, DType::kF32, machine), 64);
  machine.threads = 2;
  EXPECT_EQ(panel_columns({512, 128, 8192}, DType::kF32, machine), 32) << "no turns";
  EXPECT_EQ(panel_columns({128, 96, 768}, DType::kF32, machine), 32);
  EXPECT_EQ(panel_columns({128, 1000, 768}, DType::kF32, machine), 64);

  ContractionFacts facts = facts_of(512, 768, 768);
  facts.vectors = kVectorsOfWideTile;
  EXPECT_EQ(choose_tiles(facts, machine).rows, std::vector<int64_t>{6});
  EXPECT_EQ(choose_tiles(facts, machine).columns, 64);
  EXPECT_EQ(choose_tiles(facts, machine).turns, 1);
  EXPECT_LE(choose_tiles(facts, machine).iterations, 8) << "each block reads its panels again";
  facts.depth = facts.row_terms = 8192;
  EXPECT_GT(choose_tiles(facts, machine).turns, 1);
}

// Else a division of rows among tiles of one or two each would be as good as any.
TEST(Contraction, low_tiles_cost_more_than_their_rows) {
  const HeightCosts costs = height_costs(machine_of(512), kVectorsOfTile);
  EXPECT_GT(3 * costs.of(3), 2 * costs.of(5));
  EXPECT_EQ(costs.of(7), 7);
}

// Long sums take turns for as many rows as a cache holds: the call that was traced may have had
// few.
TEST(Contraction, turns_do_not_depend_on_rows_that_are_not_known) {
  ContractionFacts facts = facts_of(0, 4096, 4096);
  facts.expected_rows = 5;
  const ContractionTiles tiles = choose_tiles(facts, machine_of(512));
  EXPECT_GT(tiles.turns, 1);
  facts.expected_rows = 500;
  EXPECT_EQ(choose_tiles(facts, machine_of(512)).str(), tiles.str());
  facts.rows = facts.expected_rows = 48;
  EXPECT_LT(choose_tiles(facts, machine_of(512)).tiles, tiles.tiles);
}

TEST(Contraction, sums_that_wait_for_another_product_fit_a_stack) {
  Machine machine = machine_of(512);
  machine.second_level_bytes = 16 << 20;
  for (const int64_t depth : {16, 256}) {
    ContractionFacts facts = facts_of(0, 4096, depth);
    facts.products = 3;
    facts.kept_products = 2;
    facts.expected_rows = 100'000;
    const ContractionTiles tiles = choose_tiles(facts, machine);
    EXPECT_EQ(tiles.most_rows(), (tiles.tiles + 1) * tiles.rows.front());
    EXPECT_LE(tiles.most_rows() * tiles.run * 2 * tiles.columns * 4, kMostLocalBytes);
  }
}

// Either panels stand side by side, or they take turns.
TEST(Contraction, panels_side_by_side_take_no_turns) {
  ContractionFacts facts = facts_of(0, 4096, 4096);
  facts.expected_rows = 5;
  facts.reads_pieces_of_rows = true;
  const ContractionTiles tiles = choose_tiles(facts, machine_of(512));
  EXPECT_GT(tiles.panels, 1);
  EXPECT_EQ(tiles.turns, 1);
}

TEST(Contraction, sums_that_take_turns_fit_a_stack) {
  int64_t in_turns = 0;
  for (const int64_t kilobytes : {16, 256, 1024, 2048, 16384}) {
    for (const int64_t rows : {0, 500}) {
      for (const int64_t products : {1, 3}) {
        Machine machine = machine_of(512);
        machine.second_level_bytes = kilobytes * 1024;
        ContractionFacts facts = facts_of(rows, 4096, 64 * kilobytes);
        facts.expected_rows = 500;
        facts.products = products;
        const ContractionTiles tiles = choose_tiles(facts, machine);
        EXPECT_GE(tiles.tiles, 1);
        if (tiles.turns == 1) continue;
        ++in_turns;
        EXPECT_LE(tiles.most_rows() * tiles.turns * products * tiles.columns * 4, kMostLocalBytes);
      }
    }
  }
  EXPECT_GE(in_turns, 12);
}

TEST(Contraction, pieces_of_long_rows_are_read_side_by_side) {
  Machine machine = machine_of(512);
  machine.threads = 2;
  ContractionFacts facts = facts_of(1, 8192, 4096);
  EXPECT_EQ(choose_tiles(facts, machine).panels, 1);
  facts.reads_pieces_of_rows = true;
  EXPECT_EQ(choose_tiles(facts, machine).panels, 8192 / 32 / 2);
  EXPECT_LT(choose_tiles(facts, machine).depth, 64);
  machine.threads = 64;  // not in shorter pieces than a stream has
  EXPECT_EQ(choose_tiles(facts, machine).panels, 512 / 32);
  machine.threads = 1;
  facts.rows = facts.expected_rows = 12;  // sums stay in a cache
  EXPECT_EQ(choose_tiles(facts, machine).panels * 32 * 12 * 4 / 1024, 31);
  facts.columns = 500;
  EXPECT_EQ(choose_tiles(facts, machine).panels, 1);
  facts.columns = 8192;
  facts.rows = facts.expected_rows = 600;
  EXPECT_EQ(choose_tiles(facts, machine).panels, 1);
}

TEST(Contraction, a_block_of_tiles_fits_half_of_a_second_level_cache) {
  Machine machine = machine_of(512);
  machine.second_level_bytes = 1 << 20;
  const ContractionTiles tiles = choose_tiles(facts_of(12 * 512, 4096, 1024), machine);
  EXPECT_LE(tiles.tiles * tiles.rows.front() * 1024 * 4, machine.second_level_bytes / 2);
  EXPECT_GT(tiles.tiles, 1);
}

TEST(Contraction, short_integers_go_over_more_terms_at_a_time) {
  ContractionFacts facts = facts_of(512, 1024, 4096);
  EXPECT_EQ(choose_tiles(facts, machine_of(512)).depth, 256);
  for (const auto& [bytes, depth] : {std::pair{8, 256}, {4, 256}, {2, 512}, {1, 1024}}) {
    facts.accumulator = bytes == 8 ? DType::kI64 : DType::kI32;
    facts.row_bytes = bytes;
    EXPECT_EQ(choose_tiles(facts, machine_of(512)).depth, depth) << bytes << " bytes";
  }
}

TEST(Contraction, few_terms_of_rows_that_lie_pages_apart_go_across) {
  Machine machine = machine_of(512);
  const auto goes_across = [&](int64_t columns, int64_t depth, int64_t written_bytes) {
    ContractionFacts facts = facts_of(512, columns, depth);
    facts.written_bytes = written_bytes;
    const ContractionTiles tiles = choose_tiles(facts, machine);
    return tiles.tiles == 1 && tiles.run == std::max<int64_t>(1, columns / 128 / machine.threads);
  };
  for (const int64_t threads : {1, 2, 64}) {
    machine.threads = threads;
    EXPECT_TRUE(goes_across(1024, 16, 4));
    EXPECT_TRUE(goes_across(4096, 8, 4));
    EXPECT_TRUE(goes_across(2048, 8, 2));
    EXPECT_FALSE(goes_across(1024, 17, 4));
    EXPECT_FALSE(goes_across(1000, 16, 4));
    EXPECT_FALSE(goes_across(1024, 16, 2));
    EXPECT_FALSE(goes_across(1024, 16, 0));
  }
}

TEST(Contraction, panels_take_turns_where_few_long_rows_fit_a_cache) {
  Machine machine = machine_of(256);
  machine.second_level_bytes = 512 << 10;
  const ContractionTiles tiles = choose_tiles(facts_of(512, 768, 3072), machine);
  EXPECT_EQ(tiles.turns, 16);
  const int64_t rows = tiles.tiles * tiles.rows.front(), columns = tiles.turns * tiles.columns;
  EXPECT_GE(rows, 96);
  EXPECT_LT(rows * (tiles.depth + columns) * 4, machine.second_level_bytes);
  EXPECT_EQ(choose_tiles(facts_of(512, 768, 768), machine).turns, 1);
  EXPECT_EQ(choose_tiles(facts_of(12, 768, 3072), machine).turns, 1);
  EXPECT_EQ(choose_tiles(facts_of(512, 16, 3072), machine).turns, 1);
}

TEST(Contraction, products_of_few_rows_go_over_runs_of_panels) {
  Machine machine = machine_of(512);
  machine.threads = 2;
  ContractionFacts facts = facts_of(4, 2048, 768);
  EXPECT_EQ(choose_tiles(facts, machine).run, 1);
  facts.products = 2;
  EXPECT_EQ(choose_tiles(facts, machine).run, 32);
  machine.threads = 1;
  EXPECT_EQ(choose_tiles(facts, machine).run, 64);
  // Sums that wait for another product's fit the stack, whatever rows come, and of many the caches.
  facts.kept_products = 1;
  EXPECT_EQ(choose_tiles(facts, machine).run, 64);
  facts.rows = 0;
  const ContractionTiles tiles = choose_tiles(facts, machine);
  EXPECT_GT(tiles.run, 1);
  EXPECT_LE(tiles.run * (tiles.tiles + 1) * 12 * 32 * 4, 256 * 1024);
  facts.rows = facts.expected_rows = 128;
  EXPECT_EQ(choose_tiles(facts, machine).run, 1);
}

TEST(Contraction, products_that_take_turns_have_as_many_sums_as_one) {
  ContractionFacts facts = facts_of(1200, 4096, 8192);
  const ContractionTiles one = choose_tiles(facts, machine_of(512));
  for (facts.products = 2; facts.products <= 3; ++facts.products) {
    const ContractionTiles tiles = choose_tiles(facts, machine_of(512));
    EXPECT_GT(tiles.turns, 1);
    EXPECT_EQ(tiles.run, 1);
    EXPECT_LE(tiles.turns * facts.products * tiles.tiles, one.turns * one.tiles * 5 / 4);
  }
}

TEST(Contraction, panels_that_take_turns_leave_parts_for_threads) {
  Machine machine = machine_of(256);
  machine.second_level_bytes = 512 << 10;
  machine.threads = 4;
  const ContractionTiles tiles = choose_tiles(facts_of(120, 768, 4096), machine);
  EXPECT_GT(tiles.turns, 1);
  const int64_t blocks = (20 + tiles.tiles - 1) / tiles.tiles;
  EXPECT_GE(blocks * ((48 + tiles.turns - 1) / tiles.turns), 16);
}

TEST(Contraction, small_products_still_have_parts_for_threads) {
  const ContractionTiles tiles = choose_tiles(facts_of(12 * 64, 64, 64), machine_of(512));
  EXPECT_GE(tiles.iterations, 16);
}

TEST(Contraction, images_of_unknown_size_have_equal_blocks) {
  const auto blocks_of = [](int64_t size) {
    ContractionFacts facts = facts_of(0, 64, 9 * 48);
    facts.expected_rows = facts.images = size;
    facts.row_terms = 48 * (size + 2) * (size + 2) / (size * size);
    return choose_tiles(facts, machine_of(256)).str();
  };
  EXPECT_EQ(blocks_of(24), blocks_of(32));
  EXPECT_EQ(blocks_of(24), blocks_of(56));
}

TEST(Contraction, dot_instructions_take_terms_that_lie_side_by_side) {
  Machine machine = machine_of(512);
  EXPECT_EQ(dot_terms(machine, DType::kBF16, DType::kBF16), 1);
  EXPECT_EQ(dot_terms(machine, DType::kI16, DType::kI16), 1);
  machine.dots_bf16 = machine.dots_shorts = machine.dots_bytes = true;
  EXPECT_EQ(dot_terms(machine, DType::kBF16, DType::kBF16), 2);
  EXPECT_EQ(dot_terms(machine, DType::kI16, DType::kI16), 2);
  EXPECT_EQ(dot_terms(machine, DType::kU8, DType::kI8), 4);
  EXPECT_EQ(dot_terms(machine, DType::kF32, DType::kBF16), 1);
}

TEST(Contraction, what_no_instruction_multiplies_is_widened) {
  Machine machine = machine_of(512);
  EXPECT_EQ(wider_dtype(machine, DType::kF16, DType::kF16), DType::kF32);
  EXPECT_EQ(wider_dtype(machine, DType::kBF16, DType::kF16), DType::kF32);
  EXPECT_EQ(wider_dtype(machine, DType::kF32, DType::kF32), std::nullopt);
  EXPECT_EQ(wider_dtype(machine, DType::kI8, DType::kI8), std::nullopt);
  machine.dots_bf16 = machine.dots_shorts = machine.dots_bytes = true;
  EXPECT_EQ(wider_dtype(machine, DType::kBF16, DType::kBF16), std::nullopt);
  EXPECT_EQ(wider_dtype(machine, DType::kF16, DType::kF16), DType::kF32);
  EXPECT_EQ(wider_dtype(machine, DType::kI8, DType::kI8), DType::kI16);
  EXPECT_EQ(wider_dtype(machine, DType::kI16, DType::kI16), std::nullopt);
  machine.mixes_signs = machine.multiplies_halves = true;
  EXPECT_EQ(wider_dtype(machine, DType::kI8, DType::kI8), std::nullopt);
  EXPECT_EQ(wider_dtype(machine, DType::kF16, DType::kF16), std::nullopt);
}

TEST(Contraction, rows_of_one_tile_read_a_matrix_as_it_lies) {
  EXPECT_EQ(most_rows_unpacked(machine_of(256), DType::kF32, DType::kF32), 6);
  EXPECT_EQ(most_rows_unpacked(machine_of(512), DType::kF32, DType::kF32), 64);
  EXPECT_EQ(most_rows_unpacked(machine_of(256), DType::kBF16, DType::kBF16), 256);
  Machine machine = machine_of(512);
  machine.dots_bf16 = machine.dots_bytes = true;
  EXPECT_EQ(most_rows_unpacked(machine, DType::kBF16, DType::kBF16), 8);
  EXPECT_EQ(most_rows_unpacked(machine, DType::kU8, DType::kI8), 1);
  EXPECT_EQ(most_rows_unpacked(machine, DType::kF16, DType::kF16), 256);
  EXPECT_EQ(products_worth_packing(machine, DType::kF16, DType::kF16), 8);
  machine.has_library_of_halves = true;
  EXPECT_EQ(most_rows_unpacked(machine, DType::kF16, DType::kF16), 8);
  EXPECT_EQ(products_worth_packing(machine, DType::kF16, DType::kF16), 1024);
}

TEST(Contraction, narrow_vectors_pack_for_many_rows_only) {
  EXPECT_EQ(products_worth_packing(machine_of(512), DType::kF32, DType::kF32), 64);
  EXPECT_EQ(products_worth_packing(machine_of(256), DType::kF32, DType::kF32), 1280);
  EXPECT_EQ(products_worth_packing(machine_of(256), DType::kI32, DType::kI32), 64);
  EXPECT_EQ(products_worth_packing(machine_of(256), DType::kBF16, DType::kBF16), 8);
  EXPECT_EQ(products_worth_packing(machine_of(512), DType::kF16, DType::kF16), 8);
  Machine machine = machine_of(256);
  machine.dots_bf16 = true;
  EXPECT_EQ(products_worth_packing(machine, DType::kBF16, DType::kBF16), 256);
}

TEST(Contraction, one_row_reads_far_panels_side_by_side) {
  ContractionFacts facts = facts_of(1, 3072, 768);
  EXPECT_EQ(choose_tiles(facts, machine_of(512)).turns, 1);
  facts.has_far_panels = true;
  const ContractionTiles tiles = choose_tiles(facts, machine_of(512));
  EXPECT_EQ(tiles.turns, 8);
  EXPECT_EQ(tiles.depth, 8);
  EXPECT_EQ(tiles.tiles, 1);
  Machine machine = machine_of(512);
  machine.threads = 2;
  facts.columns = 768;
  EXPECT_EQ(choose_tiles(facts, machine).turns, 6) << "two blocks for each thread";
  facts.products = 3;
  EXPECT_EQ(choose_tiles(facts, machine).turns, 2);
  machine.threads = 24;
  EXPECT_EQ(choose_tiles(facts, machine).turns, 1) << "a panel for each thread";
  facts.products = 1;
  facts.row_bytes = 2;
  EXPECT_EQ(choose_tiles(facts, machine_of(512)).depth, 16);
  machine = machine_of(512);
  machine.prefetches_pages = true;
  EXPECT_EQ(choose_tiles(facts, machine).turns, 1);
  facts.rows = 2;
  EXPECT_EQ(choose_tiles(facts, machine_of(512)).turns, 1);
}

TEST(Contraction, few_rows_are_summed_along_their_terms) {
  EXPECT_EQ(most_rows_summed(machine_of(256), DType::kF32, DType::kF32), 7);
  EXPECT_EQ(most_rows_summed(machine_of(512), DType::kBF16, DType::kBF16), 1);
  EXPECT_EQ(most_rows_summed(machine_of(512), DType::kI8, DType::kI8), 0);
  EXPECT_EQ(most_rows_summed(machine_of(0), DType::kF32, DType::kF32), 0);
  Machine machine = machine_of(512);
  machine.has_scarce_loads = true;
  EXPECT_EQ(most_rows_summed(machine, DType::kF32, DType::kF32), 1);
  EXPECT_EQ(most_rows_summed(machine, DType::kF64, DType::kF64), 0);
}

// AMX: two registers of rows and of columns; a tile goes over the panels that a part of a
// second-level cache holds, as far as all threads have something to do.
TEST(Contraction, tile_registers) {
  Machine machine = machine_of(512);
  machine.multiplies_tiles = machine.dots_bf16 = machine.dots_shorts = true;
  EXPECT_TRUE(is_in_tile_registers(machine, DType::kBF16, DType::kBF16));
  EXPECT_FALSE(is_in_tile_registers(machine, DType::kI16, DType::kI16));
  EXPECT_FALSE(is_in_tile_registers(machine, DType::kF32, DType::kF32));
  ContractionFacts facts = facts_of(512, 4096, 768);
  facts.row_bytes = 2;
  facts.is_in_tile_registers = true;
  const ContractionTiles tiles = choose_tiles(facts, machine);
  EXPECT_EQ(tiles.rows, std::vector<int64_t>{32});
  EXPECT_TRUE(tiles.goes_across);
  EXPECT_EQ(tiles.depth_step, 16);
  EXPECT_GE(tiles.depth, facts.depth);
  EXPECT_LE(tiles.run * tiles.columns * 768 * 2, machine.second_level_bytes / 4);
  // Rows that do not stay there come for each run, so it is longer.
  facts.rows = facts.expected_rows = 2048;
  EXPECT_GT(choose_tiles(facts, machine).run, tiles.run);
  EXPECT_EQ(terms_of_register(machine, DType::kBF16, DType::kBF16), 32);
  EXPECT_EQ(terms_of_register(machine, DType::kF32, DType::kF32), 0);
  EXPECT_GT(products_worth_packing(machine, DType::kF32, DType::kF32),
            products_worth_packing(machine_of(512), DType::kF32, DType::kF32));
  machine.threads = 4;
  facts.rows = facts.expected_rows = 20;
  EXPECT_EQ(choose_tiles(facts, machine).rows, std::vector<int64_t>{20});
  EXPECT_LE(choose_tiles(facts, machine).run, 4096 / 32 / machine.threads);
  facts.rows = 0;
  for (const int64_t height : choose_tiles(facts, machine).rows) EXPECT_LE(height, 32);
}

}  // namespace
}  // namespace mlcc::schedule
