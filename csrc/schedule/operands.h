// What instructions multiply operands of two dtypes, what these are widened to, and when code for a
// product whose operands change with each call is likely no slower than a library's.
#pragma once

#include <cstdint>
#include <optional>

#include "schedule/machine.h"
#include "types/dtype.h"

namespace mlcc::schedule {

// Terms of a sum that one instruction multiplies and adds up, where they lie side by side; 1: none
// does.
int64_t dot_terms(const Machine& machine, DType lhs, DType rhs);

// What operands of many rows are better widened to once than by each tile, where no instruction
// multiplies them as they are.
std::optional<DType> wider_dtype(const Machine& machine, DType lhs, DType rhs);

// Terms in a row of a register of whole tiles, where such registers multiply them (see
// Machine::multiplies_tiles), in words; else 0.
int64_t terms_of_register(const Machine& machine, DType lhs, DType rhs);
bool is_in_tile_registers(const Machine& machine, DType lhs, DType rhs);

// Whether code is likely no slower than a library's where the operand that is read in vectors
// changes with each call: it has at most so many rows, and reads it as it lies;
int64_t most_rows_unpacked(const Machine& machine, DType lhs, DType rhs);
// or so many products, at least, for each element that is copied for it.
int64_t products_worth_packing(const Machine& machine, DType lhs, DType rhs);
// The same where its terms lie side by side: at most so many rows are multiplied along them, one
// sum after the other.
int64_t most_rows_summed(const Machine& machine, DType lhs, DType rhs);

}  // namespace mlcc::schedule
