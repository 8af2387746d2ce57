#include "schedule/winograd.h"

#include <algorithm>
#include <string>

#include "support/error.h"

namespace mlcc::schedule {
namespace {

// What transformed images cost, in products of one channel and column; what the model gives:
// docs/decisions/0034-winograd.md.
struct Costs {
  static constexpr double kImage = 64;    // to transform a channel of an image's tile
  static constexpr double kResult = 56;   // a column of a result's
  static constexpr double kTile = 16384;  // of a tile beside these
  static constexpr double kByte = 1.6;    // of filters, from beyond a second-level cache
  // The part of the direct convolution's cost below which images are transformed.
  static constexpr double kWorth = 0.9;
};
// Filters that take more of a second-level cache than a half come from beyond it.
constexpr int64_t kCachePartOfFilters = 2;

// Of a block, at most: with 64 channels and as many columns they fit a stack.
constexpr int64_t kMostTiles = 50;
// Heights of products where the number of tiles is not known, in sixths of the highest one.
constexpr int64_t kSixthsOfHeights[] = {6, 5, 4};
constexpr int64_t kProducts = 16, kTapsOfPixel = 9;
constexpr int64_t kBytes = 4;
// Of margins, and of results of one tile.
constexpr int64_t kOtherBytes = 4096;
// Terms of one accumulator, see choose_tiles.
constexpr int64_t kMostChannels = 128;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool transforms_images(const Machine& machine) {
  return machine.transforms_images && !machine.is_gpu && machine.vector_bits > 0;
}

int64_t vectors_of(const WinogradFacts& facts, const Machine& machine) {
  if (facts.panel > 0) return facts.panel / vector_columns(machine, DType::kF32);
  if (!machine.has_scarce_loads) return kVectorsOfTile;
  const int64_t narrow = tile_columns(machine, DType::kF32);
  const int64_t wide = kVectorsOfWideTile * vector_columns(machine, DType::kF32);
  return ceil_div(facts.columns, wide) * wide == ceil_div(facts.columns, narrow) * narrow
             ? kVectorsOfWideTile
             : kVectorsOfTile;
}

}  // namespace

int64_t WinogradTiles::computed() const {
  int64_t most = 0;
  for (const int64_t height : rows) most = std::max(most, ceil_div(tiles, height) * height);
  return most;
}

std::string WinogradTiles::str() const {
  std::string heights;
  for (const int64_t height : rows)
    heights += (heights.empty() ? "" : "|") + std::to_string(height);
  return detail::join("winograd=", heights, "x", columns, " tiles=", tiles, " channels=", channels,
                      " panels=", panels);
}

WinogradTiles choose_winograd(const WinogradFacts& facts, const Machine& machine) {
  WinogradTiles chosen;
  const int64_t vectors = vectors_of(facts, machine);
  const int64_t lanes = vector_columns(machine, DType::kF32);
  chosen.columns = vectors * lanes;
  chosen.grain_terms = kGrainTerms;
  const int64_t all_panels = ceil_div(facts.columns, chosen.columns);
  const int64_t enough = machine.parts(kPartsOfThread);
  const int64_t blocks = ceil_div(facts.tiles, kMostTiles);
  const int64_t groups = std::min(all_panels, ceil_div(enough, blocks));
  chosen.panels = ceil_div(all_panels, groups);
  // Of a number that is not known, calls to come may have more than the one that was traced.
  chosen.tiles = facts.are_tiles_known ? ceil_div(facts.tiles, blocks) : kMostTiles;
  chosen.costs = height_costs(machine, vectors);
  const int64_t highest = most_rows(machine, vectors);
  if (facts.are_tiles_known)
    chosen.rows = {tile_rows(chosen.tiles, machine, vectors)};
  else
    for (const int64_t sixths : kSixthsOfHeights) chosen.rows.push_back(highest * sixths / 6);
  const int64_t of_channel = kProducts * kBytes * chosen.computed();
  const int64_t fitting = (kMostLocalBytes - kOtherBytes) / of_channel - chosen.columns;
  const int64_t most = std::clamp(fitting / lanes * lanes, lanes, kMostChannels);
  const int64_t even = ceil_div(facts.channels, ceil_div(facts.channels, most));
  chosen.channels = std::min(most, ceil_div(even, lanes) * lanes);
  return chosen;
}

bool has_winograd(int64_t panel, const Machine& machine) {
  const int64_t lanes = vector_columns(machine, DType::kF32);
  return transforms_images(machine) &&
         (panel == kVectorsOfTile * lanes || panel == kVectorsOfWideTile * lanes);
}

int64_t transformed_columns(const WinogradFacts& facts, const Machine& machine) {
  if (!transforms_images(machine)) return 0;
  const WinogradTiles chosen = choose_winograd(facts, machine);
  const auto channels = static_cast<double>(facts.channels);
  const auto columns = static_cast<double>(facts.columns);
  const auto tiles = static_cast<double>(facts.tiles);
  const int64_t blocks = ceil_div(facts.tiles, chosen.tiles);
  const auto bytes = [&](int64_t filters) {
    const double all = static_cast<double>(filters * kBytes) * channels * columns;
    return all > static_cast<double>(machine.second_level_bytes) / kCachePartOfFilters
               ? all * Costs::kByte
               : 0;
  };
  const double direct =
      static_cast<double>(kTapsOfPixel * facts.pixels) * channels * columns + bytes(kTapsOfPixel);
  const int64_t all_panels = ceil_div(facts.columns, chosen.columns);
  const int64_t times =
      chosen.channels < facts.channels ? all_panels : ceil_div(all_panels, chosen.panels);
  const double products =
      static_cast<double>(kProducts * blocks * chosen.computed()) * channels * columns;
  const double rest = tiles * (Costs::kImage * channels * static_cast<double>(times) +
                               Costs::kResult * columns + Costs::kTile);
  const double transformed = products + rest + static_cast<double>(blocks) * bytes(kProducts);
  return transformed < Costs::kWorth * direct ? chosen.columns : 0;
}

}  // namespace mlcc::schedule
