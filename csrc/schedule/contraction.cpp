#include "schedule/contraction.h"

#include <algorithm>
#include <array>
#include <bit>
#include <span>

#include "support/error.h"

namespace mlcc::schedule {
namespace {

// The figures behind these tables: docs/decisions/0025-contractions.md.

// Terms of one accumulator: errors stay those of short sums, about as large as those of libraries.
struct Depth {
  static constexpr int64_t kFloats = 256;
  // Wide tiles have registers for one set of sums only, and take fewer at no cost.
  static constexpr int64_t kFloatsOfWideTiles = 128;
  // Integers have no errors: bytes of a row's terms, which stay in a first-level cache with the
  // columns that they meet.
  static constexpr int64_t kBytesOfIntegers = 1024;
  // In registers of whole tiles all, and so many at least: a trace at few terms may be followed by
  // calls with many.
  static constexpr int64_t kTileRegisters = 4096;
};

// Heights of tiles. Each is code of its own, which takes time to compile.
struct Heights {
  // So many of the largest tiles, one below the other, have few rows: there are all heights.
  static constexpr int64_t kFewTiles = 2;
  // Where the largest tile has more rows than this there are registers for heights that suit rows
  // of images, which are seldom multiples of 12 but of 7 or 8.
  static constexpr int64_t kMostOfFewRegisters = 8;
  static constexpr std::array<int64_t, 5> kPixels = {8, 7, 4, 2, 1};
  static constexpr std::array<int64_t, 9> kPixelsOfTileRegisters = {32, 28, 16, 14, 8, 7, 4, 2, 1};
  // Of many rows, beside the largest height.
  static constexpr std::array<int64_t, 3> kMany = {10, 8, 7};
  static constexpr std::array<int64_t, 2> kManyOfFewRegisters = {5, 4};
  static constexpr std::array<int64_t, 2> kManyOfTileRegisters = {24, 16};
};

// What a register tile costs, in rows: lower ones wait for their panels as long as the least one.
struct LeastRows {
  static constexpr int64_t kTile = 5;
  static constexpr int64_t kWideTile = 4;  // of twice as many products in a row
};
// Vector registers with which multiplications hide the loads of a tile.
constexpr int64_t kRegistersThatHideLoads = 32;
// Quarters of the vector registers that are sums; the others are for operands, and for what these
// are computed from.
constexpr int64_t kQuartersOfSums = 3, kQuartersBesideComputed = 2;

// What parts of a second-level cache hold while tiles go over it.
struct CacheParts {
  static constexpr int64_t kRows = 2;   // a half: what a block reads of the broadcast operand
  static constexpr int64_t kPanel = 4;  // a quarter: a panel that tiles of few rows read again
  static constexpr int64_t kRun = 4;    // a quarter: panels that each tile goes across
  static constexpr int64_t kRunBesideRows = 2;  // a half: the same where the rows do not stay there
  static constexpr int64_t kEighthsOfTurns = 5;  // rows and sums of panels that take turns
  static constexpr int64_t kComputedPanel = 2;   // a half of a first-level cache: terms of a panel
};

// Panels that a kernel computes.
struct ComputedPanels {
  static constexpr int64_t kLeastTerms = 32;  // at a time
};

// Iterations of the parallel loop that are enough for any number of threads.
constexpr int64_t kEnoughParallel = 32;

// Pieces of long rows that lie as they are, which a tile reads a few terms at a time: each term is
// a stream that is prefetched, and what is there of a page of memory is read at once.
struct Streams {
  static constexpr int64_t kTerms = 8;           // at a time, of few rows
  static constexpr int64_t kRowsOfTerms = 2;     // so few
  static constexpr int64_t kBytes = 64;          // of a row's terms at a time, of more rows
  static constexpr int64_t kLeastColumns = 512;  // of a piece; shorter rows are read tile by tile
};

// Several products of the same rows, whose panels come from memory in runs.
struct Runs {
  static constexpr int64_t kRows = 32;           // fewer only wait for memory
  static constexpr int64_t kBytes = 256 * 1024;  // of sums that wait for those of another product
};

// Terms of a row that are few, in bytes: the stores of several tiles are under way at once.
constexpr int64_t kBytesOfFewTerms = 64;

// Panels of four vectors of columns, whose tiles load less for each product.
struct WidePanels {
  static constexpr int64_t kRows = 20;          // from which on they are worth it
  static constexpr int64_t kRowsOfTurns = 192;  // the same where panels take turns
  static constexpr int64_t kWorthFilling = 20;  // columns of which one may be filled up
};

// Panels that take turns at a part of long sums.
struct Turns {
  static constexpr int64_t kRowsWorthColumns = 64;  // rows that columns are worth reading for
  static constexpr int64_t kMost = 16;              // panels
};

// Panels side by side for one row, which would wait where prefetchers stop at the end of a page.
struct SideBySide {
  static constexpr int64_t kPanels = 8;
  static constexpr int64_t kLeastTerms = 8;     // of each at a time
  static constexpr int64_t kBytesOfTerms = 32;  // the same, of a row
};

// Tiles one below the other in registers of whole tiles, at most, where rows are not known.
constexpr int64_t kMostTilesAcross = 256;

// Two registers of whole tiles stand one below the other.
int64_t rows_of_registers(const Machine& machine) { return 2 * machine.tile_register_rows; }

HeightCosts costs_of_registers(const Machine& machine) {
  return {.least = 1, .beside = machine.tile_register_words / 2};
}

// Of up to `most` rows a tile, as few computed as possible; of equal ones the largest tile.
int64_t fitting_rows(int64_t rows, int64_t most, const HeightCosts& costs) {
  if (rows <= most) return std::max<int64_t>(1, rows);
  int64_t best = most;
  const auto cost = [&](int64_t tile) { return (rows + tile - 1) / tile * costs.of(tile); };
  for (int64_t tile = most; tile * 2 > most; --tile)
    if (cost(tile) < cost(best)) best = tile;
  return best;
}

// The largest height and these.
std::vector<int64_t> with_largest(int64_t largest, std::span<const int64_t> others) {
  std::vector<int64_t> heights = {largest};
  heights.insert(heights.end(), others.begin(), others.end());
  return heights;
}

void choose_rows(ContractionTiles& tiles, const ContractionFacts& facts, int64_t most,
                 const Machine& machine) {
  tiles.many.above = Heights::kFewTiles * most;
  const bool has_few_registers = most <= Heights::kMostOfFewRegisters;
  if (facts.rows > 0) {
    tiles.rows = {fitting_rows(facts.rows, most, tiles.costs)};
  } else if (facts.is_in_tile_registers && facts.are_pixels) {
    tiles.rows.assign(Heights::kPixelsOfTileRegisters.begin(),
                      Heights::kPixelsOfTileRegisters.end());
  } else if (facts.is_in_tile_registers) {
    tiles.many.heights = with_largest(most, Heights::kManyOfTileRegisters);
    tiles.rows = {most, Heights::kManyOfTileRegisters.front()};
    for (int64_t rows = machine.tile_register_rows; rows > 0; --rows) tiles.rows.push_back(rows);
  } else if (!has_few_registers && facts.are_pixels) {
    tiles.rows.assign(Heights::kPixels.begin(), Heights::kPixels.end());
  } else {
    for (int64_t rows = most; rows > 0; --rows) tiles.rows.push_back(rows);
    tiles.many.heights = has_few_registers ? with_largest(most, Heights::kManyOfFewRegisters)
                                           : with_largest(most, Heights::kMany);
  }
}

// Of tiles that may be lower, see most_rows.
int64_t spare_tiles(const ContractionTiles& tiles) { return tiles.rows.size() > 1 ? 1 : 0; }

// Whose sums, so many bytes for each, fit a stack.
int64_t tiles_in_stack(const ContractionTiles& tiles, int64_t tile_bytes) {
  return std::max<int64_t>(1, kMostLocalBytes / tile_bytes - spare_tiles(tiles));
}

// Long sums: where whole rows are that long, few of them stay in a second-level cache, and columns
// come from beyond it for each few. So a block of several panels goes over a part of the terms at a
// time.
void take_turns(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine,
                int64_t all) {
  const int64_t column_tiles = (facts.columns + tiles.columns - 1) / tiles.columns;
  const int64_t part = std::min(facts.depth, tiles.depth);
  const int64_t row_bytes = part * facts.row_terms / facts.depth * facts.row_bytes;
  const int64_t sum_bytes = facts.products * tiles.columns * dtype_size(facts.accumulator);
  const int64_t enough = machine.parts(kPartsOfThread);
  const auto blocks = [&](int64_t rows, int64_t panels) {
    return (all + rows - 1) / rows * ((column_tiles + panels - 1) / panels) * facts.others;
  };
  int64_t turns = std::min(std::max<int64_t>(1, Turns::kMost / facts.products), column_tiles);
  const int64_t sums_of_tiles = tiles.rows.front() * turns * sum_bytes;
  const int64_t in_cache = machine.second_level_bytes * CacheParts::kEighthsOfTurns / 8 /
                           (tiles.rows.front() * row_bytes + sums_of_tiles);
  const int64_t fitting =
      std::max<int64_t>(1, std::min(in_cache, tiles_in_stack(tiles, sums_of_tiles)));
  // Of a number that is not known, calls to come may have more than the one that was traced.
  int64_t rows = facts.rows > 0 ? std::min(all, fitting) : fitting;
  while (turns > 1 && blocks(rows, turns) < enough) turns /= 2;
  while (rows > tiles.tiles && blocks(rows, turns) < enough) rows /= 2;
  if (turns == 1 || rows <= tiles.tiles) return;
  tiles.turns = turns;
  tiles.tiles = rows;
  tiles.iterations = 1;
}

// Several products: panels of each come from memory in runs, as if it were alone. But where sums
// wait for those of another product, of more rows these would fill the caches.
void choose_run(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine) {
  const int64_t column_tiles = (facts.columns + tiles.columns - 1) / tiles.columns;
  const int64_t parts = machine.threads;
  tiles.run = (column_tiles + parts - 1) / parts;
  const int64_t tile_rows = tiles.rows.front();
  int64_t most_rows = tiles.most_rows();
  if (facts.rows > 0)
    most_rows = std::min(most_rows, (facts.rows + tile_rows - 1) / tile_rows * tile_rows);
  const int64_t sum_bytes =
      facts.kept_products * most_rows * tiles.columns * dtype_size(facts.accumulator);
  if (sum_bytes > 0) tiles.run = std::clamp<int64_t>(Runs::kBytes / sum_bytes, 1, tiles.run);
  if (tiles.run > 1) tiles.iterations = parts;
}

// Sums of so few terms that stores of several tiles are under way at once, where those of one
// column all belong to one set of a first-level cache: there are more of them than it has ways.
bool writes_one_set(const ContractionFacts& facts, const Machine& machine) {
  return facts.written_bytes > 0 && facts.depth * facts.row_bytes <= kBytesOfFewTerms &&
         facts.columns * facts.written_bytes % machine.first_level_set_bytes == 0;
}

// Whether a panel is more than what tiles of few rows should read again and again.
bool has_long_panels(const ContractionFacts& facts, const Machine& machine) {
  const int64_t bytes =
      facts.depth * facts.vectors * vector_columns(machine, facts.accumulator) * facts.row_bytes;
  return facts.vectors > kVectorsOfTile && bytes * CacheParts::kPanel > machine.second_level_bytes;
}

// A tile's rows from panel to panel, of which an iteration has a quarter at most, and as many as
// leave threads their parts.
void take_single_tiles(ContractionTiles& tiles, int64_t column_tiles, const Machine& machine) {
  const int64_t parts = kPartsOfThread * machine.threads;
  tiles.run = (column_tiles + parts - 1) / parts;
  tiles.tiles = tiles.iterations = 1;
}

// Makes parts of a sum so short that there are many: these are added up in parts too.
void take_few_terms(ContractionTiles& tiles, const ContractionFacts& facts, int64_t terms) {
  tiles.depth = terms;
  if (is_float(facts.accumulator))
    tiles.parts_of_sum = std::max<int64_t>(1, Depth::kFloats / terms);
}

// One row reads several panels in turns, as many as leave each thread its part. False, with nothing
// changed, where it is better read one panel after the other.
bool take_panels_side_by_side(ContractionTiles& tiles, const ContractionFacts& facts,
                              const Machine& machine, int64_t column_tiles) {
  const int64_t terms =
      std::max(SideBySide::kLeastTerms, SideBySide::kBytesOfTerms / facts.row_bytes);
  if (facts.group_terms > 0) return false;
  if (facts.rows != 1 || facts.images != 1 || !facts.has_far_panels || facts.is_in_tile_registers ||
      machine.prefetches_pages || facts.depth <= terms)
    return false;
  const int64_t most = std::max<int64_t>(1, SideBySide::kPanels / facts.products);
  const int64_t blocks = (column_tiles + most - 1) / most;
  const int64_t threads = facts.others < machine.threads ? machine.threads : 1;
  const int64_t parts = (blocks + threads - 1) / threads * threads;
  const int64_t turns = (column_tiles + parts - 1) / parts;
  if (turns == 1) return false;
  tiles.turns = turns;
  take_few_terms(tiles, facts, terms);
  tiles.tiles = tiles.iterations = 1;
  return true;
}

// Registers of whole tiles take rows as 32 streams, and columns in one piece: so the rows stay
// where they are near, and columns come from a part of a second-level cache, which holds a run of
// panels.
void go_across(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine,
               int64_t column_tiles, int64_t all) {
  const int64_t panel_bytes = facts.depth * tiles.columns * facts.row_bytes;
  const int64_t enough = machine.parts(kPartsOfThread);
  // Rows that do not stay there themselves come from beyond it once for each run.
  const int64_t bytes_of_rows = all * tiles.rows.front() * facts.row_terms * facts.row_bytes;
  const int64_t part =
      bytes_of_rows > machine.second_level_bytes ? CacheParts::kRunBesideRows : CacheParts::kRun;
  tiles.run = std::clamp<int64_t>(machine.second_level_bytes / part / panel_bytes, 1, column_tiles);
  const auto runs = [&] { return (column_tiles + tiles.run - 1) / tiles.run; };
  while (tiles.run > 1 && runs() * facts.others * all < enough) tiles.run = (tiles.run + 1) / 2;
  // Runs of equal length.
  tiles.run = (column_tiles + runs() - 1) / runs();
  tiles.tiles = facts.rows > 0 ? all : kMostTilesAcross;
  tiles.iterations = enough;
  tiles.goes_across = true;
}

// Panels that are computed a few terms at a time, which stay in a first-level cache while all rows
// of a block are multiplied with them: as many rows as threads leave.
void take_computed_panels(ContractionTiles& tiles, const ContractionFacts& facts,
                          const Machine& machine, int64_t all) {
  const int64_t term_bytes = tiles.columns * facts.computed_bytes;
  const int64_t terms =
      std::min(tiles.depth, machine.first_level_bytes / CacheParts::kComputedPanel / term_bytes);
  take_few_terms(tiles, facts, std::max(terms, ComputedPanels::kLeastTerms));
  const int64_t sums = tiles.parts_of_sum > 1 ? 2 : 1;  // of all, and of parts
  const int64_t tile_bytes =
      sums * facts.products * tiles.rows.front() * tiles.columns * dtype_size(facts.accumulator);
  const int64_t fitting = std::max<int64_t>(
      1, (kMostLocalBytes - tiles.depth * term_bytes) / tile_bytes - spare_tiles(tiles));
  tiles.tiles = facts.rows > 0 ? std::min(all, fitting) : fitting;
  tiles.iterations = machine.threads;
}

void choose_depth(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine) {
  if (facts.group_terms > 0) {
    tiles.depth = facts.group_terms;
  } else if (facts.is_in_tile_registers) {
    tiles.depth = std::max(facts.depth, Depth::kTileRegisters);
    tiles.depth_step = machine.tile_register_words;
  } else if (is_float(facts.accumulator)) {
    const bool is_wide = facts.vectors > kVectorsOfTile;
    tiles.depth = is_wide ? Depth::kFloatsOfWideTiles : Depth::kFloats;
  } else {
    tiles.depth = std::max(Depth::kFloats, Depth::kBytesOfIntegers / facts.row_bytes);
  }
}

// Tiles side by side over pieces of the rows of a matrix that is read as it lies.
void choose_panels(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine,
                   int64_t column_tiles) {
  const int64_t tile_rows = tiles.rows.front();
  const int64_t bytes = tile_rows * tiles.columns * dtype_size(facts.accumulator);
  const int64_t of_thread = (column_tiles + machine.threads - 1) / machine.threads;
  const int64_t wanted = std::max(of_thread, Streams::kLeastColumns / tiles.columns);
  // Their sums should stay in a first-level cache.
  tiles.panels =
      std::max<int64_t>(1, std::min({machine.first_level_bytes / bytes, wanted, column_tiles}));
  if (tiles.panels > 1)
    take_few_terms(tiles, facts,
                   tile_rows <= Streams::kRowsOfTerms ? Streams::kTerms
                                                      : Streams::kBytes / facts.row_bytes);
}

}  // namespace

bool ManyRows::may_have(int64_t height) const {
  return heights.empty() || std::ranges::count(heights, height) > 0;
}

int64_t HeightCosts::of(int64_t rows) const { return std::max(least, rows + beside); }

int64_t ContractionTiles::most_rows() const { return (tiles + spare_tiles(*this)) * rows.front(); }

std::string ContractionTiles::str() const {
  std::string all;
  for (const int64_t count : rows) all += (all.empty() ? "" : "|") + std::to_string(count);
  const std::string wide = panels == 1 ? "" : detail::join(" panels=", panels);
  const std::string in_turns = turns == 1 ? "" : detail::join(" turns=", turns);
  const std::string in_run = run == 1 ? "" : detail::join(goes_across ? " across=" : " run=", run);
  const std::string of_many = products == 1 ? "" : detail::join(" products=", products);
  return detail::join("tile=", all, "x", columns, wide, " depth=", depth, " tiles=", tiles,
                      in_turns, in_run, of_many);
}

int64_t vector_columns(const Machine& machine, DType accumulator) {
  return machine.vector_bits / 8 / dtype_size(accumulator);
}

int64_t tile_columns(const Machine& machine, DType accumulator) {
  return kVectorsOfTile * vector_columns(machine, accumulator);
}

// Where registers are few, or loads scarce, loads count too, which a tile makes for each of its
// rows and vectors of columns. Rows of wide tiles are twice as many products, beside which loads
// are half.
HeightCosts height_costs(const Machine& machine, int64_t vectors) {
  const int64_t rows_of_loads = kVectorsOfWideTile / vectors;
  if (vectors == kVectorsOfWideTile) return {LeastRows::kWideTile, rows_of_loads};
  const bool hides_loads =
      vector_registers(machine.vector_bits) == kRegistersThatHideLoads && !machine.has_scarce_loads;
  return {LeastRows::kTile, hides_loads ? 0 : rows_of_loads};
}

// Rows of accumulators that leave registers for the operands.
int64_t most_rows(const Machine& machine, int64_t vectors) {
  return vector_registers(machine.vector_bits) * kQuartersOfSums / 4 / vectors;
}

int64_t most_rows_in_registers(const Machine& machine, int64_t vectors) {
  return vector_registers(machine.vector_bits) * kQuartersBesideComputed / 4 / vectors;
}

int64_t tile_rows(int64_t rows, const Machine& machine, int64_t vectors) {
  return fitting_rows(rows, most_rows(machine, vectors), height_costs(machine, vectors));
}

int64_t computed_rows(int64_t rows, const Machine& machine, int64_t vectors) {
  const int64_t tile = tile_rows(rows, machine, vectors);
  return (rows + tile - 1) / tile * tile;
}

ContractionTiles choose_tiles(const ContractionFacts& facts, const Machine& machine) {
  ContractionTiles tiles;
  const bool is_in_registers = facts.is_in_tile_registers;
  const int64_t most =
      is_in_registers ? rows_of_registers(machine) : most_rows(machine, facts.vectors);
  tiles.costs =
      is_in_registers ? costs_of_registers(machine) : height_costs(machine, facts.vectors);
  choose_rows(tiles, facts, most, machine);
  tiles.columns = facts.vectors * vector_columns(machine, facts.accumulator);
  choose_depth(tiles, facts, machine);
  tiles.products = facts.products;
  tiles.grain_terms = kGrainTerms;
  const int64_t tile_rows = tiles.rows.front();
  const int64_t column_tiles = (facts.columns + tiles.columns - 1) / tiles.columns;
  if (facts.reads_pieces_of_rows && facts.columns >= Streams::kLeastColumns &&
      facts.expected_rows <= most)
    choose_panels(tiles, facts, machine, column_tiles);
  const int64_t all = (facts.expected_rows + tile_rows - 1) / tile_rows * facts.images;
  // Of images whose size is not known a power of two: other sizes are to find the same code.
  const auto row_terms = static_cast<uint64_t>(std::max<int64_t>(1, facts.row_terms));
  const int64_t row_bytes =
      static_cast<int64_t>(facts.rows > 0 ? row_terms : std::bit_floor(row_terms)) *
      facts.row_bytes;
  const int64_t kept_bytes = facts.kept_products * tiles.columns * dtype_size(facts.accumulator);
  // What a block reads of the broadcast operand stays while it is multiplied with all columns.
  int64_t most_tiles = std::max<int64_t>(1, machine.second_level_bytes / CacheParts::kRows /
                                                (tile_rows * (row_bytes + kept_bytes)));
  if (kept_bytes > 0)
    most_tiles = std::min(most_tiles, tiles_in_stack(tiles, tile_rows * kept_bytes));
  if (facts.computed_bytes > 0) {
    take_computed_panels(tiles, facts, machine, all);
    return tiles;
  }
  if (facts.is_in_tile_registers && facts.kept_products == 0) {
    go_across(tiles, facts, machine, column_tiles, all);
    return tiles;
  }
  if (take_panels_side_by_side(tiles, facts, machine, column_tiles)) return tiles;
  tiles.tiles = most_tiles;
  // A wide panel is read again for each few rows: by as few blocks as leave threads their parts.
  tiles.iterations =
      facts.vectors > kVectorsOfTile ? machine.parts(kPartsOfThread) : kEnoughParallel;
  tiles.shares_panels = facts.has_image || facts.images > 1;
  const bool is_known = facts.rows > 0 || facts.images == 1;
  const bool is_long = has_long_panels(facts, machine);
  const bool may_be_more = facts.rows == 0 && facts.products == 1;
  if (is_known && tiles.panels == 1 &&
      (is_long || most_tiles * tile_rows < Turns::kRowsWorthColumns) &&
      (may_be_more || most_tiles < all))
    take_turns(tiles, facts, machine, all);
  if (writes_one_set(facts, machine) && facts.products == 1 && tiles.turns == 1 &&
      tiles.panels == 1)
    take_single_tiles(tiles, column_tiles, machine);
  const bool is_in_runs = facts.kept_products == 0 || facts.expected_rows <= Runs::kRows;
  if (facts.products > 1 && tiles.turns == 1 && is_in_runs) choose_run(tiles, facts, machine);
  return tiles;
}

int64_t panel_columns(const PanelFacts& facts, DType accumulator, const Machine& machine) {
  const int64_t narrow = tile_columns(machine, accumulator);
  if (!machine.has_scarce_loads || facts.rows < WidePanels::kRows) return narrow;
  const int64_t wide = kVectorsOfWideTile * vector_columns(machine, accumulator);
  const auto filled = [&](int64_t by) { return (facts.columns + by - 1) / by * by; };
  if ((filled(wide) - filled(narrow)) * WidePanels::kWorthFilling > filled(narrow)) return narrow;
  ContractionFacts product;
  product.rows = product.expected_rows = facts.rows;
  product.columns = facts.columns;
  product.depth = product.row_terms = facts.depth;
  product.row_bytes = dtype_size(accumulator);
  product.accumulator = accumulator;
  product.vectors = kVectorsOfWideTile;
  if (!has_long_panels(product, machine)) return wide;
  if (facts.has_images_of_unknown_size) return narrow;
  return facts.rows >= WidePanels::kRowsOfTurns && choose_tiles(product, machine).turns > 1
             ? wide
             : narrow;
}

}  // namespace mlcc::schedule
