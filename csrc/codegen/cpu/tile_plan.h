// How the tile of a contraction is cut into blocks whose sums fit the machine's registers.
#pragma once

#include <cstdint>
#include <vector>

namespace mlcc::codegen::cpu {

// What the code of a block keeps in vector registers, by family of instructions (product.h).
struct RegisterNeeds {
  int64_t registers = 16;  // that there are
  int64_t constants = 0;   // for the whole block
  int64_t per_row = 1;     // of A, one row at a time
  int64_t per_group = 1;   // of B, masks and the like: one group of columns

  // Those beside the sums.
  int64_t of_step(int64_t groups) const { return constants + per_row + groups * per_group; }
};

// Neighbouring columns in one vector, from column `first` of the block on.
struct ColumnGroup {
  unsigned first;
  unsigned width;
};

// `count` blocks side by side from column `first` of the tile on.
struct ColumnBlocks {
  int64_t first;
  int64_t count;
  int64_t columns;  // of each
  std::vector<ColumnGroup> groups;
};

struct RowBlocks {
  int64_t first;
  int64_t count;
  int64_t rows;  // of each
};

// Vectors of full width, then halves for what is left.
std::vector<ColumnGroup> group_columns(int64_t columns, int64_t lanes);

// Whether a row of so many groups has its sums in registers.
bool fits_registers(int64_t groups, const RegisterNeeds& needs);

// Blocks of equal shape stand together: each list has at most two entries.
std::vector<ColumnBlocks> cut_columns(int64_t rows, int64_t columns, int64_t lanes,
                                      const RegisterNeeds& needs);
std::vector<RowBlocks> cut_rows(int64_t rows, int64_t groups, const RegisterNeeds& needs);

// How many sets of sums, of which neighbouring steps of depth use different ones, a block needs so
// that no sum waits for its predecessor, which takes `latency` cycles. A power of two, as the steps
// are that stand together.
int64_t count_sets(int64_t rows, int64_t groups, int64_t latency, const RegisterNeeds& needs);

}  // namespace mlcc::codegen::cpu
