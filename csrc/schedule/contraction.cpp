#include "schedule/contraction.h"

#include <algorithm>
#include <bit>

#include "support/error.h"

namespace mlcc::schedule {
namespace {

// Terms of one accumulator: errors stay those of short sums, about as large as those of libraries.
// Integers have none: of short ones as many as have so many bytes in a row, which with the columns
// that they meet stay in a first-level cache. 2048 x 1000 x 260 of bytes ran at 861 GOP/s in two
// parts, at 963 in one.
// Wide tiles have registers for one set of sums only, and take fewer at no cost: 5 x 64 x 300 of
// f32 erred by 3.9e-7 of the largest result with 256, where a library errs by 1.1e-7.
constexpr int64_t kMostTerms = 256, kMostTermsOfWideTiles = 128, kBytesOfTerms = 1024;
// Iterations of the parallel loop that are enough for any number of threads.
constexpr int64_t kEnoughParallel = 32;

// Terms at a time where tiles read pieces of long rows: as many streams are prefetched, and what is
// there of a page of memory is read at once. Of f32, 1 x 3072 x 768 takes 134 us with 8, 160 with
// 16 and 420 without; 8 x 3072 x 768 takes 446 with 8, 384 with 16, 420 with 32, 798 without. Of
// bf16, whose rows are half as long, 8 rows take 460, 387, 360 and 384.
constexpr int64_t kTermsOfStreams = 8, kBytesOfStreams = 64, kRowsOfFewSums = 2;
// Products of the same rows: fewer rows only wait for memory; bytes of sums that wait for those of
// another product, of which few are written as a rule.
constexpr int64_t kRowsOfRuns = 32, kBytesOfRun = 256 * 1024;
// Bytes of sums that are added up to in turns: they should stay in a first-level cache.
constexpr int64_t kBytesOfSums = 32 * 1024;
// Shorter rows are read tile by tile, and longer ones not in shorter pieces: 1 x 512 x 512 takes 14
// us instead of 25, 1 x 333 x 77 the same; 1 x 4096 x 4096 in pieces of 512, 1024, 2048 and 4096
// columns reads 20, 23, 24 and 26 GB/s.
constexpr int64_t kLeastColumnsOfStreams = 512;

// Of lines of a first-level cache that belong to one set, and of a row's terms that are few: with
// 16 terms of f32 and 1024 columns tiles one below the other ran at 114 GFLOP/s, side by side at
// 236; with 960 columns at 242 and 234, with 24 terms and 1024 columns at 249 and 247.
constexpr int64_t kBytesOfSets = 4096, kBytesOfFewTerms = 64;

// So many of the largest tiles, one below the other, have few rows.
constexpr int64_t kFewTiles = 2;

// Wide tiles load less: 10 times for 24 products, others 14 times. They read a panel for few rows
// at a time, so it should stay in a part of a second-level cache; longer ones take turns where
// there are rows enough. Of f32 over a library's packed product on a Xeon whose core is shared, 12
// x 32 and 6 x 64: 16 x 3072 x 768 1.06, 1.01, 20 rows 1.10, 1.17, 512 rows 0.82, 0.92; 512 x 2048
// x 2048 0.81, 0.90; in turns 128 x 768 x 3072 0.81, 0.81, 192 rows 0.79, 0.92, 512 0.76, 0.91.
// Where it is not shared, 1.02 to 1.07 times as fast.
constexpr int64_t kRowsOfWideTiles = 20, kPartOfPanel = 4, kRowsOfTurns = 192;
// Columns of which one may be filled up for a panel to be wide.
constexpr int64_t kWorthFilling = 20;

// Rows that columns are worth reading for, and panels that take turns, at most.
constexpr int64_t kRowsWorthColumns = 64, kMostTurns = 16;

// One row reads each panel once, and where prefetchers stop at the end of a page it waits there,
// unless panels are read side by side, a KB of each at a time. Of f32 on a Xeon, GB/s of one, two,
// four, eight and sixteen panels: 500 MB 15.6, 17.0, 18.7, 20.0, 18.8; 33 MB 23.5, 24.6, 24.5,
// 24.5, 24.3; of 8 panels 4 KB at a time 500 MB 16.4, half a KB 19.2.
constexpr int64_t kPanelsOfOneRow = 8, kLeastTermsAtATime = 8, kBytesOfTermsAtATime = 32;

// Of AMX: words of a register's row, and rows of two registers.
constexpr int64_t kWordsOfRegister = 16, kRowsOfRegisters = 32;
constexpr HeightCosts kCostsOfRegisters = {.least = 1, .beside = kWordsOfRegister / 2};
// Tiles one below the other, at most, where rows are not known; terms of one sum, at least, since a
// trace at few of them may be followed by calls with many.
constexpr int64_t kMostTilesAcross = 256, kTermsOfTiles = 4096;

// Of up to `most` rows a tile, as few computed as possible; of equal ones the largest tile.
int64_t fitting_rows(int64_t rows, int64_t most, const HeightCosts& costs) {
  if (rows <= most) return std::max<int64_t>(1, rows);
  int64_t best = most;
  const auto cost = [&](int64_t tile) { return (rows + tile - 1) / tile * costs.of(tile); };
  for (int64_t tile = most; tile * 2 > most; --tile)
    if (cost(tile) < cost(best)) best = tile;
  return best;
}

// Each height is code that takes 2 ms to compile. Of few rows it decides: 7 and 11 rows took 1.2
// and 1.4 times as long in two tiles of 4 and 6 rows, 9 to 13 rows of words in registers 1.2 to 1.5
// times as long. Of more rows four heights compute 1.004 times those of all from 7 to 12 in the
// mean, 1.09 times at most (44).
void choose_rows(ContractionTiles& tiles, const ContractionFacts& facts, int64_t most) {
  tiles.many.above = kFewTiles * most;
  if (facts.rows > 0) {
    tiles.rows = {fitting_rows(facts.rows, most, tiles.costs)};
  } else if (facts.is_in_tile_registers && facts.are_pixels) {
    tiles.rows = {32, 28, 16, 14, 8, 7, 4, 2, 1};
  } else if (facts.is_in_tile_registers) {
    tiles.rows = {32, 24};
    for (int64_t rows = kWordsOfRegister; rows > 0; --rows) tiles.rows.push_back(rows);
    tiles.many.heights = {32, 24, 16};
  } else if (most > 8 && facts.are_pixels) {
    // Rows of images are seldom multiples of 12, but of 7 or 8: 14, 28, 56, 64. Measured: 116
    // GFLOP/s in tiles of 7 rows, and 100 where tiles of 8 go over rows of 14 or 28.
    tiles.rows = {8, 7, 4, 2, 1};
  } else {
    for (int64_t rows = most; rows > 0; --rows) tiles.rows.push_back(rows);
    tiles.many.heights =
        most > 8 ? std::vector<int64_t>{most, 10, 8, 7} : std::vector<int64_t>{most, 5, 4};
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
// time. With 512 rows of f32 on a core that shares its last level, GFLOP/s without and with: 2048 x
// 2048 40 and 82, 768 x 3072 45 and 83.
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
  int64_t turns = std::min(std::max<int64_t>(1, kMostTurns / facts.products), column_tiles);
  const int64_t sums_of_tiles = tiles.rows.front() * turns * sum_bytes;
  const int64_t in_cache =
      machine.second_level_bytes * 5 / 8 / (tiles.rows.front() * row_bytes + sums_of_tiles);
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

// Several products: panels of each come from memory in runs, as if it were alone. A panel of each
// in turns took 1.05 to 1.1 times as long for 1 to 4 rows of f32, which wait for memory. But where
// sums wait for those of another product, of more rows these would fill the caches.
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
  if (sum_bytes > 0) tiles.run = std::clamp<int64_t>(kBytesOfRun / sum_bytes, 1, tiles.run);
  if (tiles.run > 1) tiles.iterations = parts;
}

// Sums of so few terms that stores of several tiles are under way at once, where those of one
// column all belong to one set of a first-level cache: there are more of them than it has ways.
bool writes_one_set(const ContractionFacts& facts) {
  return facts.written_bytes > 0 && facts.depth * facts.row_bytes <= kBytesOfFewTerms &&
         facts.columns * facts.written_bytes % kBytesOfSets == 0;
}

// Whether a panel is more than what tiles of few rows should read again and again.
bool has_long_panels(const ContractionFacts& facts, const Machine& machine) {
  const int64_t bytes =
      facts.depth * facts.vectors * vector_columns(machine, facts.accumulator) * facts.row_bytes;
  return facts.vectors > kVectorsOfTile && bytes * kPartOfPanel > machine.second_level_bytes;
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
  if (is_float(facts.accumulator)) tiles.parts_of_sum = std::max<int64_t>(1, kMostTerms / terms);
}

// One row reads several panels in turns, as many as leave each thread its part. False, with nothing
// changed, where it is better read one panel after the other.
bool take_panels_side_by_side(ContractionTiles& tiles, const ContractionFacts& facts,
                              const Machine& machine, int64_t column_tiles) {
  const int64_t terms = std::max(kLeastTermsAtATime, kBytesOfTermsAtATime / facts.row_bytes);
  if (facts.rows != 1 || facts.images != 1 || !facts.has_far_panels || facts.is_in_tile_registers ||
      machine.prefetches_pages || facts.depth <= terms)
    return false;
  const int64_t most = std::max<int64_t>(1, kPanelsOfOneRow / facts.products);
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

// Tiles of AMX take the rows of 32 streams, and columns in one piece: so the rows stay where they
// are near, and columns come from a part of a second-level cache, which holds a run of panels.
void go_across(ContractionTiles& tiles, const ContractionFacts& facts, const Machine& machine,
               int64_t column_tiles, int64_t all) {
  const int64_t panel_bytes = facts.depth * tiles.columns * facts.row_bytes;
  const int64_t enough = machine.parts(kPartsOfThread);
  // Rows that do not stay there themselves come from beyond it once for each run.
  const int64_t bytes_of_rows = all * tiles.rows.front() * facts.row_terms * facts.row_bytes;
  const int64_t part = bytes_of_rows > machine.second_level_bytes ? 2 : 4;
  tiles.run = std::clamp<int64_t>(machine.second_level_bytes / part / panel_bytes, 1, column_tiles);
  const auto runs = [&] { return (column_tiles + tiles.run - 1) / tiles.run; };
  while (tiles.run > 1 && runs() * facts.others * all < enough) tiles.run = (tiles.run + 1) / 2;
  // Runs of equal length.
  tiles.run = (column_tiles + runs() - 1) / runs();
  tiles.tiles = facts.rows > 0 ? all : kMostTilesAcross;
  tiles.iterations = enough;
  tiles.goes_across = true;
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
// rows and vectors of columns: with 256-bit vectors 512 x 1024 x 1024 ran at 111 GFLOP/s in tiles
// of 4 rows, 120 of 5 and 124 of 6 on a Zen 5. With 512-bit ones tiles of 5 to 12 rows run at one
// speed there, and lower ones wait for their panels: 420 x 768 x 768 ran at 250 GFLOP/s in tiles of
// 5 and 4 rows, 219 of 3, 158 of 2 and 86 of 1, with 64 terms at 252 of 5 and 237 of 4. Rows of
// wide tiles are twice as many products, beside which loads are half.
HeightCosts height_costs(const Machine& machine, int64_t vectors) {
  static constexpr int64_t kLeastRows = 5, kLeastRowsOfWideTiles = 4;
  const int64_t rows_of_loads = kVectorsOfWideTile / vectors;
  if (vectors == kVectorsOfWideTile) return {kLeastRowsOfWideTiles, rows_of_loads};
  const bool hides_loads = vector_registers(machine.vector_bits) == 32 && !machine.has_scarce_loads;
  return {kLeastRows, hides_loads ? 0 : rows_of_loads};
}

// Rows of accumulators that leave registers for the operands: three quarters of these are sums.
int64_t most_rows(const Machine& machine, int64_t vectors) {
  return vector_registers(machine.vector_bits) * 3 / 4 / vectors;
}

int64_t tile_rows(int64_t rows, const Machine& machine, int64_t vectors) {
  return fitting_rows(rows, most_rows(machine, vectors), height_costs(machine, vectors));
}

int64_t computed_rows(int64_t rows, const Machine& machine, int64_t vectors) {
  const int64_t tile = tile_rows(rows, machine, vectors);
  return (rows + tile - 1) / tile * tile;
}

namespace {

bool is_byte(DType dtype) { return dtype == DType::kI8 || dtype == DType::kU8; }
bool is_short_float(DType dtype) { return is_float(dtype) && dtype_size(dtype) == 2; }

// Whether libraries multiply the dtype with instructions that tiles have none like.
bool has_faster_library(const Machine& machine, DType dtype) {
  return dtype == DType::kF16 && machine.has_library_of_halves;
}

}  // namespace

int64_t dot_terms(const Machine& machine, DType lhs, DType rhs) {
  if (machine.dots_bf16 && lhs == DType::kBF16 && rhs == DType::kBF16) return 2;
  if (machine.dots_shorts && lhs == DType::kI16 && rhs == DType::kI16) return 2;
  if (machine.dots_bytes && is_byte(lhs) && is_byte(rhs)) return 4;
  return 1;
}

std::optional<DType> wider_dtype(const Machine& machine, DType lhs, DType rhs) {
  if (dot_terms(machine, lhs, rhs) == 4) {
    const bool has_shorts = machine.dots_shorts && !machine.mixes_signs;
    return has_shorts ? std::optional(DType::kI16) : std::nullopt;
  }
  if (!is_short_float(lhs) || !is_short_float(rhs) || dot_terms(machine, lhs, rhs) > 1) return {};
  const bool are_halves = lhs == DType::kF16 && rhs == DType::kF16;
  return are_halves && machine.multiplies_halves ? std::nullopt : std::optional(DType::kF32);
}

int64_t terms_of_register(const Machine& machine, DType lhs, DType rhs) {
  const int64_t terms = dot_terms(machine, lhs, rhs);
  const bool has_registers = machine.multiplies_tiles && lhs != DType::kI16 && terms > 1;
  return has_registers ? kWordsOfRegister * terms : 0;
}

bool is_in_tile_registers(const Machine& machine, DType lhs, DType rhs) {
  return terms_of_register(machine, lhs, rhs) > 0;
}

// A tile goes over whole rows of the matrix, which are read once more for each tile. f32 over a
// library on a Zen 3, tiles of 6 rows: 6 x 3072 x 768 1.5, 7 x 3072 x 768 0.7, 12 x 1024 x 4096
// 0.7, 63 x 4096 x 4096 0.8. With 512-bit vectors 63 rows stood at 0.9 at least. More rows of short
// elements are better cut into words, which a library does: 12 x 3072 x 768 of bf16 took 1.15 times
// as long as one, 4 x 768 x 768 of bytes 2.5 times. Where loads are scarce 13 to 63 rows of 2,047
// numbers by 1,000 columns stood at 0.2 to 0.7, on a busy machine.
int64_t most_rows_unpacked(const Machine& machine, DType lhs, DType rhs) {
  const int64_t terms = dot_terms(machine, lhs, rhs);
  if (is_in_tile_registers(machine, lhs, rhs)) return 1;
  if (terms > 1) return terms == 2 ? 8 : 1;
  if (has_faster_library(machine, rhs)) return 8;
  if (dtype_size(rhs) < 4) return 256;
  const bool is_one_tile = machine.vector_bits < 512 || machine.has_scarce_loads;
  return is_float(rhs) && is_one_tile ? most_rows(machine) : 64;
}

// Libraries reach 0.85 of the peak of 256-bit vectors, and tiles gain a twentieth of the time at
// most: of f32 on a Zen 3, 512 x 3072 x 768 stands at 0.93, 1024 x 3072 x 768 at 0.96, 1536 x 768
// x 768 at 1.05, 2048 x 1024 x 1024 at 1.07, with a transposed left operand (683 products an
// element) at 0.98. Of short elements a copy takes a half or a quarter of the time, as do the
// products: 128 x 768 x 768 of bf16 took 1.18 times as long as a library. Where no instruction
// multiplies 16-bit floats libraries have little for them: 16 x 768 x 768 of bf16 takes them 732 us
// with 256-bit vectors and 276 with 512-bit ones, tiles with the copy 278 and 117. Where registers
// of whole tiles multiply, the copy takes ever more of it: 512 x 3072 x 768 of bf16 0.78. CPUs that
// have them have libraries near the peak of f32 too: training steps of 512 rows of 1024 numbers
// stood at 0.93 of a library, and at 1.2 with its products.
int64_t products_worth_packing(const Machine& machine, DType lhs, DType rhs) {
  if (is_in_tile_registers(machine, lhs, rhs)) return 2048;
  if (has_faster_library(machine, rhs)) return 1024;
  if (dtype_size(rhs) < 4 && is_float(rhs) && dot_terms(machine, lhs, rhs) == 1) return 8;
  if (dtype_size(rhs) < 4) return 256;
  if (is_float(rhs) && machine.multiplies_tiles) return 1024;
  return is_float(rhs) && machine.vector_bits < 512 ? 1280 : 64;
}

// Of f32 on a Zen 5, over a library: 1 x 768 x 768 1.3, 1 x 4096 x 4096 1.6, 2 x 768 x 768 2.1, 4
// and 7 1.9 and 2.0; of bf16 1, 2, 4 and 7 rows of 768 x 768 2.0, 1.1, 0.6 and 0.4. Bytes have
// instructions that a sum of products does not use: 1 x 768 x 768 0.5. Where loads are scarce 2, 3
// and 6 rows of 1000 x 2047 of f32 stand at 1.0, 1.0 and 0.6, 2 and 3 of 4096 x 4096 at 0.75 and
// 0.66, of f64 one at 0.78.
int64_t most_rows_summed(const Machine& machine, DType, DType rhs) {
  if (machine.vector_bits == 0 || !is_float(rhs)) return 0;
  if (dtype_size(rhs) < 4) return 1;
  if (machine.has_scarce_loads) return dtype_size(rhs) == 4 ? 1 : 0;
  return 7;
}

ContractionTiles choose_tiles(const ContractionFacts& facts, const Machine& machine) {
  ContractionTiles tiles;
  const bool is_in_registers = facts.is_in_tile_registers;
  const int64_t most = is_in_registers ? kRowsOfRegisters : most_rows(machine, facts.vectors);
  tiles.costs = is_in_registers ? kCostsOfRegisters : height_costs(machine, facts.vectors);
  choose_rows(tiles, facts, most);
  tiles.columns = facts.vectors * vector_columns(machine, facts.accumulator);
  if (facts.is_in_tile_registers) {
    tiles.depth = std::max(facts.depth, kTermsOfTiles);
    tiles.depth_step = kWordsOfRegister;
  } else {
    const bool is_wide = facts.vectors > kVectorsOfTile;
    tiles.depth = is_float(facts.accumulator)
                      ? (is_wide ? kMostTermsOfWideTiles : kMostTerms)
                      : std::max(kMostTerms, kBytesOfTerms / facts.row_bytes);
  }
  tiles.products = facts.products;
  tiles.grain_terms = kGrainTerms;
  const int64_t tile_rows = tiles.rows.front();
  const int64_t column_tiles = (facts.columns + tiles.columns - 1) / tiles.columns;
  if (facts.reads_pieces_of_rows && facts.columns >= kLeastColumnsOfStreams &&
      facts.expected_rows <= most) {
    const int64_t bytes = tile_rows * tiles.columns * dtype_size(facts.accumulator);
    const int64_t of_thread = (column_tiles + machine.threads - 1) / machine.threads;
    const int64_t wanted = std::max(of_thread, kLeastColumnsOfStreams / tiles.columns);
    tiles.panels = std::max<int64_t>(1, std::min({kBytesOfSums / bytes, wanted, column_tiles}));
    if (tiles.panels > 1)
      take_few_terms(tiles, facts,
                     tile_rows <= kRowsOfFewSums ? kTermsOfStreams
                                                 : kBytesOfStreams / facts.row_bytes);
  }
  // What a block of tiles reads of the broadcast operand stays in half of a second-level cache
  // while it is multiplied with all columns.
  const int64_t all = (facts.expected_rows + tile_rows - 1) / tile_rows * facts.images;
  // Of images whose size is not known a power of two: other sizes are to find the same code.
  const auto row_terms = static_cast<uint64_t>(std::max<int64_t>(1, facts.row_terms));
  const int64_t row_bytes =
      static_cast<int64_t>(facts.rows > 0 ? row_terms : std::bit_floor(row_terms)) *
      facts.row_bytes;
  const int64_t kept_bytes = facts.kept_products * tiles.columns * dtype_size(facts.accumulator);
  int64_t most_tiles =
      std::max<int64_t>(1, machine.second_level_bytes / 2 / (tile_rows * (row_bytes + kept_bytes)));
  if (kept_bytes > 0)
    most_tiles = std::min(most_tiles, tiles_in_stack(tiles, tile_rows * kept_bytes));
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
  if (is_known && tiles.panels == 1 && (is_long || most_tiles * tile_rows < kRowsWorthColumns) &&
      (may_be_more || most_tiles < all))
    take_turns(tiles, facts, machine, all);
  if (writes_one_set(facts) && facts.products == 1 && tiles.turns == 1 && tiles.panels == 1)
    take_single_tiles(tiles, column_tiles, machine);
  const bool is_in_runs = facts.kept_products == 0 || facts.expected_rows <= kRowsOfRuns;
  if (facts.products > 1 && tiles.turns == 1 && is_in_runs) choose_run(tiles, facts, machine);
  return tiles;
}

int64_t panel_columns(const PanelFacts& facts, DType accumulator, const Machine& machine) {
  const int64_t narrow = tile_columns(machine, accumulator);
  if (!machine.has_scarce_loads || facts.rows < kRowsOfWideTiles) return narrow;
  const int64_t wide = kVectorsOfWideTile * vector_columns(machine, accumulator);
  const auto filled = [&](int64_t by) { return (facts.columns + by - 1) / by * by; };
  if ((filled(wide) - filled(narrow)) * kWorthFilling > filled(narrow)) return narrow;
  ContractionFacts product;
  product.rows = product.expected_rows = facts.rows;
  product.columns = facts.columns;
  product.depth = product.row_terms = facts.depth;
  product.row_bytes = dtype_size(accumulator);
  product.accumulator = accumulator;
  product.vectors = kVectorsOfWideTile;
  if (!has_long_panels(product, machine)) return wide;
  if (facts.has_images_of_unknown_size) return narrow;
  return facts.rows >= kRowsOfTurns && choose_tiles(product, machine).turns > 1 ? wide : narrow;
}

}  // namespace mlcc::schedule
