// How a 3x3 convolution of step 1 is computed from transformed tiles (Winograd's F(2x2, 3x3), Lavin
// and Gray, 2015): 2x2 pixels of the result come from 4x4 of the image, by 16 products of matrices
// instead of 36.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/contraction.h"
#include "schedule/machine.h"

namespace mlcc::schedule {

// Sizes are those to be expected; of f32.
struct WinogradFacts {
  int64_t tiles = 1;  // of all images
  bool are_tiles_known = false;
  int64_t pixels = 1;    // of all results
  int64_t channels = 1;  // of the image
  int64_t columns = 1;   // channels of the result
  int64_t panel = 0;     // columns that filters lie together in; 0: to be chosen
};

struct WinogradTiles {
  // Tiles of the image, of which each is a row of the 16 products, in registers; the largest first:
  // those that are chosen from where their number is known only when the kernel runs.
  std::vector<int64_t> rows;
  HeightCosts costs;
  int64_t columns = 1;      // of these products, in registers
  int64_t tiles = 1;        // of a block, whose transformed images are there at a time
  int64_t channels = 1;     // of these
  int64_t panels = 1;       // of columns, of an iteration
  int64_t grain_terms = 1;  // products that are worth a thread
  // How many elements a matrix of a block begins behind the end of the one before it: all of them
  // would meet in a few sets of a first-level cache else.
  static constexpr int64_t kMargin = 16;
  // Rows that are computed of a block, at most.
  int64_t computed() const;
  std::string str() const;  // "winograd=5x64 tiles=49 channels=64 panels=4"
};

// Whether there are tiles for panels of so many columns.
bool has_winograd(int64_t panel, const Machine& machine);

// Columns of the panels that transformed filters lie in; 0: the convolution is likely faster as it
// is.
int64_t transformed_columns(const WinogradFacts& facts, const Machine& machine);

WinogradTiles choose_winograd(const WinogradFacts& facts, const Machine& machine);

}  // namespace mlcc::schedule
