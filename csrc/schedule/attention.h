// How attention is cut into tiles: rows of queries against blocks of keys.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "schedule/contraction.h"
#include "schedule/machine.h"
#include "types/dtype.h"

namespace mlcc::schedule {

// Sizes are those to be expected; 0 rows: not known while compiling.
struct AttentionFacts {
  int64_t rows = 0;  // queries that have keys in common
  int64_t expected_rows = 1;
  int64_t keys = 1;
  int64_t row_bytes = 0;    // of a query
  int64_t key_bytes = 0;    // of one; 0: scores are not computed here
  int64_t value_bytes = 0;  // of one
  int64_t columns = 1;      // of values
  int64_t others = 1;       // attentions of the same form: batches, heads
  int64_t panel = 1;        // keys that lie together
  DType accumulator = DType::kF32;
  bool is_in_tile_registers = false;  // see Machine::multiplies_tiles
};

struct AttentionTiles {
  std::vector<int64_t> rows;  // of a tile, see ContractionTiles
  HeightCosts costs;
  int64_t keys = 1;         // of a block, whole panels of them
  int64_t tiles = 1;        // one below the other, which take the same keys in turns
  int64_t grain_terms = 1;  // products that are worth a thread
  std::string str() const;  // "tile=12x128 tiles=4"
};

AttentionTiles choose_attention(const AttentionFacts& facts, const Machine& machine);

// A block of queries against one of keys. Of the facts `row_bytes` and `key_bytes` are what a block
// holds of a query and of a key beside their weights and the gradients of their scores.
struct AttentionGradientTiles {
  AttentionTiles products;  // of scores
  int64_t queries = 1;      // of a block
  int64_t rows = 1;         // of a tile of sums: those of a block and its keys are whole ones
};

AttentionGradientTiles choose_attention_gradients(const AttentionFacts& facts,
                                                  const Machine& machine);

}  // namespace mlcc::schedule
