#include "schedule/attention.h"

#include <algorithm>
#include <numeric>

#include "schedule/contraction.h"
#include "support/error.h"

namespace mlcc::schedule {
namespace {

// The figures behind these tables: docs/decisions/0026-attention.md.

// Keys of a block, at most: so many that what is done once for each row of a block is little of the
// work.
constexpr int64_t kMostKeys = 256;
// Values whose rows are a multiple of these bytes meet in a quarter of the sets of a first-level
// cache, which holds so many keys' of them.
constexpr int64_t kBytesThatMeet = 512, kMostKeysThatMeet = 64;
// A block of keys and its values take a quarter of a second-level cache while tiles take turns.
constexpr int64_t kCachePartOfKeys = 4;
// Tiles that share a block of keys, at most; iterations for each thread for which there are fewer.
constexpr int64_t kMostTiles = 8, kIterationsOfThread = 8;

// Of gradients: queries and keys of a block, at most; of keys more where multiples of rows and
// panels are, and all are there.
constexpr int64_t kMostOfEither = 96;
// All that is local takes half of a second-level cache.
constexpr int64_t kCachePartOfGradients = 2;

// Of a product of so many rows, 0: not known while compiling.
ContractionTiles tiles_of(int64_t rows, int64_t expected_rows, int64_t columns, DType accumulator,
                          const Machine& machine, bool is_in_tile_registers = false) {
  ContractionFacts product;
  product.rows = rows;
  product.expected_rows = expected_rows;
  product.columns = columns;
  product.accumulator = accumulator;
  product.is_in_tile_registers = is_in_tile_registers;
  ContractionTiles tiles = choose_tiles(product, machine);
  // Of each height there are tiles that fill the rows of two of the largest ones.
  const int64_t filled = 2 * tiles.rows.front();
  std::erase_if(tiles.rows, [&](int64_t height) { return filled % height != 0; });
  return tiles;
}

}  // namespace

std::string AttentionTiles::str() const {
  std::string heights;
  for (const int64_t count : rows) heights += (heights.empty() ? "" : "|") + std::to_string(count);
  return detail::join("tile=", heights, "x", keys, " tiles=", tiles);
}

AttentionTiles choose_attention(const AttentionFacts& facts, const Machine& machine) {
  const ContractionTiles of_product =
      tiles_of(facts.rows, facts.expected_rows, facts.columns, facts.accumulator, machine,
               facts.is_in_tile_registers);
  AttentionTiles tiles;
  tiles.rows = of_product.rows;
  tiles.costs = of_product.costs;
  tiles.grain_terms = of_product.grain_terms;
  const auto whole_panels = [&](int64_t keys) {
    return std::max<int64_t>(1, keys / facts.panel) * facts.panel;
  };
  const int64_t fitting = machine.second_level_bytes / kCachePartOfKeys /
                          std::max<int64_t>(1, facts.key_bytes + facts.value_bytes);
  const int64_t most =
      !machine.has_scarce_loads && facts.value_bytes > 0 && facts.value_bytes % kBytesThatMeet == 0
          ? kMostKeysThatMeet
          : kMostKeys;
  tiles.keys = whole_panels(
      std::min({most, fitting, (facts.keys + facts.panel - 1) / facts.panel * facts.panel}));
  const int64_t height = tiles.rows.front();
  const int64_t all = (facts.expected_rows + height - 1) / height;
  const int64_t enough = machine.parts(kIterationsOfThread);
  tiles.tiles = std::clamp<int64_t>(all * facts.others / enough, 1, std::min(all, kMostTiles));
  // So that tiles of each height fill the rows of the largest ones, see
  // lower/attention/attention.cpp.
  if (tiles.rows.size() > 1) tiles.tiles = std::max<int64_t>(2, tiles.tiles / 2 * 2);
  return tiles;
}

AttentionGradientTiles choose_attention_gradients(const AttentionFacts& facts,
                                                  const Machine& machine) {
  const ContractionTiles of_product =
      tiles_of(facts.rows, facts.expected_rows, facts.panel, facts.accumulator, machine);
  AttentionGradientTiles tiles;
  tiles.products.rows = of_product.rows;
  tiles.products.costs = of_product.costs;
  tiles.products.grain_terms = of_product.grain_terms;
  const auto whole = [](int64_t length, int64_t step) { return (length + step - 1) / step * step; };
  // Tiles of products may stand over both ends of a block.
  const int64_t bytes =
      std::min(kMostLocalBytes, machine.second_level_bytes / kCachePartOfGradients);
  const auto queries_beside = [&](int64_t keys) {
    const int64_t row_bytes =
        facts.row_bytes + 2 * (keys + facts.panel) * dtype_size(facts.accumulator);
    return (bytes - keys * facts.key_bytes) / row_bytes - 2 * tiles.products.rows.front();
  };
  // Keys are columns of one product and rows of another.
  const auto unit_of = [&](int64_t height) { return std::lcm(height, facts.panel); };
  const std::vector<int64_t> heights =
      tiles_of(0, kMostOfEither, facts.panel, facts.accumulator, machine).rows;
  const int64_t most_keys = std::max(kMostOfEither, whole(facts.keys, facts.panel));
  tiles.rows = *std::find_if(heights.begin(), heights.end() - 1, [&](int64_t height) {
    const int64_t unit = unit_of(height);
    return unit <= most_keys && queries_beside(unit) >= height;
  });
  const int64_t unit = unit_of(tiles.rows);
  const auto filled = [&](int64_t length, int64_t most, int64_t step) {
    return std::max(step, std::min(most / step * step, whole(length, step)));
  };
  tiles.products.keys =
      filled(facts.keys, std::min(kMostOfEither, bytes / 2 / facts.key_bytes), unit);
  const int64_t left = queries_beside(tiles.products.keys);
  tiles.queries = filled(facts.expected_rows, std::min(kMostOfEither, left), tiles.rows);
  return tiles;
}

}  // namespace mlcc::schedule
