// How a contraction is cut into tiles: C[rows, columns] in registers, added up over the reduced
// axes.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/machine.h"
#include "schedule/operands.h"
#include "types/dtype.h"

namespace mlcc::schedule {

// Vectors of columns in a tile, and in one that loads less for each product.
inline constexpr int64_t kVectorsOfTile = 2, kVectorsOfWideTile = 4;

// Multiplications and additions that are worth a thread: some microseconds of a core's time.
inline constexpr int64_t kGrainTerms = 512 * 1024;
// Iterations of the parallel loop for each thread, where more are not worth counting.
inline constexpr int64_t kPartsOfThread = 4;

// Sizes are those to be expected; 0 rows: not known while compiling.
struct ContractionFacts {
  int64_t rows = 0;  // along the operand that is broadcast
  int64_t expected_rows = 1;
  int64_t columns = 1;    // along the operand that is read in vectors
  int64_t depth = 1;      // terms of a sum
  int64_t row_terms = 1;  // elements that a row adds to those of the rows before
  int64_t images = 1;     // as many times these rows are multiplied with the same columns
  int64_t others = 1;     // products of the same form: batches
  int64_t products = 1;  // with as many operands of columns these rows are multiplied in one kernel
  int64_t kept_products = 0;  // of these, those whose sums wait until later ones are computed
  bool has_image =
      false;  // whether rows are the pixels of a whole image, and `images` their number
  bool are_pixels = false;  // whether rows are pixels, of a whole image or of one row of it
  int64_t row_bytes = 4;    // of an element of the operand that is broadcast
  // Of an element of the result as it is written; 0: columns or depth are not known while
  // compiling, or results differ.
  int64_t written_bytes = 0;
  DType accumulator = DType::kF32;
  int64_t vectors = kVectorsOfTile;  // of a tile's columns
  // Whether each term's columns lie side by side over the whole matrix, so that a tile's are a
  // short piece of a long row.
  bool reads_pieces_of_rows = false;
  bool is_in_tile_registers = false;  // see Machine::multiplies_tiles
  // Bytes of an element of columns that the kernel computes; 0: they are read.
  int64_t computed_bytes = 0;
  int64_t group_terms = 0;  // of a sum that has scales of its own; 0: there are no such groups
  // Whether columns lie in panels that are likely beyond a second-level cache.
  bool has_far_panels = false;
};

// Of a kernel's sums on a thread's stack: code generators allow 512 KiB of buffers, of which some
// hold other things.
inline constexpr int64_t kMostLocalBytes = 448 << 10;

// Heights of tiles for more rows than `above`; none: all heights are for any number of rows.
struct ManyRows {
  std::vector<int64_t> heights;
  int64_t above = 0;
  bool may_have(int64_t height) const;
};

// What a tile of so many rows costs, in rows.
struct HeightCosts {
  int64_t least = 1;   // however few they are
  int64_t beside = 0;  // in addition to them
  int64_t of(int64_t rows) const;
};

struct ContractionTiles {
  // Of a tile, the largest first: those that are chosen from where the number of rows is known only
  // when the kernel runs.
  std::vector<int64_t> rows;
  ManyRows many;
  HeightCosts costs;
  int64_t columns = 1;
  int64_t depth = 1;       // terms that meet in one accumulator, at most
  int64_t depth_step = 1;  // a part of the axis that is cut is a multiple of so many of its steps
  // Parts of `depth` terms that are added up before they join the others, so that long sums err no
  // more than those of whole accumulators; 1: each joins at once.
  int64_t parts_of_sum = 1;
  int64_t panels = 1;  // tiles side by side that are added up to in turns, a few terms at a time
  int64_t tiles = 1;   // one below the other, which take the same columns in turns; at most
  // Iterations of the parallel loop for which blocks are made of fewer tiles.
  int64_t iterations = 1;
  // Panels whose tiles take turns at `depth` terms, with all their sums in a buffer; 1: a tile goes
  // over all of its terms at once.
  // Where the kernel finds that its rows are few, a panel after the other.
  int64_t turns = 1;
  // Panels that an iteration of the parallel loop goes over, of a product before those of the next
  // one.
  int64_t run = 1;
  bool goes_across = false;  // each tile goes over the panels of a run; else each panel over tiles
  int64_t products = 1;      // whose tiles stand at the same place: a kernel computes them together
  // Whether columns, which may be more than the rows, are read once for all blocks that are no more
  // than `tiles` together; else for each block.
  bool shares_panels = false;
  int64_t grain_terms = 1;  // products that are worth a thread
  // Rows that `tiles` compute at most. Tiles that turn out to be lower than the largest one, of
  // which there may be one more for it, compute no more together.
  int64_t most_rows() const;
  std::string str() const;  // "tile=12x32 depth=512 tiles=16"
};

// Columns of a vector of accumulators, and of a tile; 0 where code has no vectors.
int64_t vector_columns(const Machine& machine, DType accumulator);
int64_t tile_columns(const Machine& machine, DType accumulator);

// Sizes that are to be expected of a product whose operand of columns is packed.
struct PanelFacts {
  int64_t rows, columns, depth;
  // Whether rows are the pixels that a window goes over in several images, with symbols among their
  // sizes: lowering may find no turns for their panels.
  bool has_images_of_unknown_size = false;
};

// Columns in the panels of a packed operand, and so in its tiles.
int64_t panel_columns(const PanelFacts& facts, DType accumulator, const Machine& machine);

// Of tiles of so many vectors.
HeightCosts height_costs(const Machine& machine, int64_t vectors);

// Rows of a tile of so many vectors at most, and where there are so many.
int64_t most_rows(const Machine& machine, int64_t vectors = kVectorsOfTile);
int64_t tile_rows(int64_t rows, const Machine& machine, int64_t vectors);

// Rows that are multiplied with what is computed of a panel of so many vectors while it is in
// registers. To compute it takes registers too, so fewer are left for sums than in a tile.
int64_t most_rows_in_registers(const Machine& machine, int64_t vectors);

// Rows that tiles compute of so many, those that are computed twice included.
int64_t computed_rows(int64_t rows, const Machine& machine, int64_t vectors = kVectorsOfTile);

ContractionTiles choose_tiles(const ContractionFacts& facts, const Machine& machine);

}  // namespace mlcc::schedule
