#include "schedule/operands.h"

#include "schedule/contraction.h"

namespace mlcc::schedule {
namespace {

// The figures behind these tables: docs/decisions/0025-contractions.md.

// Rows up to which tiles read a matrix as it lies, which they do once more for each tile: what more
// rows lose by that a library gains by copying the matrix, or by cutting it into words.
struct RowsUnpacked {
  static constexpr int64_t kTileRegisters = 1;   // whole tiles are multiplied from words alone
  static constexpr int64_t kPairs = 8;           // an instruction multiplies pairs
  static constexpr int64_t kFours = 1;           // or fours
  static constexpr int64_t kFastLibrary = 8;     // libraries have instructions that tiles lack
  static constexpr int64_t kShort = 256;         // short elements, one at a time
  static constexpr int64_t kManyRegisters = 64;  // several tiles of 512-bit vectors
};

// Products for each copied element from which on a packed operand is worth its copy.
struct ProductsPacked {
  static constexpr int64_t kTileRegisters = 2048;    // products are fast beside any copy
  static constexpr int64_t kFastLibrary = 1024;      // libraries have instructions that tiles lack
  static constexpr int64_t kSlowLibrary = 8;         // 16-bit floats that no instruction multiplies
  static constexpr int64_t kShort = 256;             // their copy takes half of the time, or less
  static constexpr int64_t kLibraryNearPeak = 1024;  // f32 beside registers of whole tiles
  static constexpr int64_t kNarrowVectors = 1280;    // floats, where tiles gain little on a library
  static constexpr int64_t kWideVectors = 64;        // floats in 512-bit vectors, and integers
};

// Rows up to which sums along the terms of a matrix are no slower than a library.
struct RowsSummed {
  static constexpr int64_t kIntegers = 0;  // sums of products use none of their instructions
  static constexpr int64_t kShort = 1;     // 16-bit floats
  static constexpr int64_t kScarceLoads = 1, kScarceLoadsOfF64 = 0;
  static constexpr int64_t kFloats = 7;
};

constexpr int64_t kBitsOfWideVectors = 512;
// Elements below this many bytes are short.
constexpr int64_t kWholeBytes = 4;

bool is_short(DType dtype) { return dtype_size(dtype) < kWholeBytes; }
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
  return has_registers ? machine.tile_register_words * terms : 0;
}

bool is_in_tile_registers(const Machine& machine, DType lhs, DType rhs) {
  return terms_of_register(machine, lhs, rhs) > 0;
}

int64_t most_rows_unpacked(const Machine& machine, DType lhs, DType rhs) {
  const int64_t terms = dot_terms(machine, lhs, rhs);
  if (is_in_tile_registers(machine, lhs, rhs)) return RowsUnpacked::kTileRegisters;
  if (terms > 1) return terms == 2 ? RowsUnpacked::kPairs : RowsUnpacked::kFours;
  if (has_faster_library(machine, rhs)) return RowsUnpacked::kFastLibrary;
  if (is_short(rhs)) return RowsUnpacked::kShort;
  const bool is_one_tile = machine.vector_bits < kBitsOfWideVectors || machine.has_scarce_loads;
  return is_float(rhs) && is_one_tile ? most_rows(machine) : RowsUnpacked::kManyRegisters;
}

int64_t products_worth_packing(const Machine& machine, DType lhs, DType rhs) {
  if (is_in_tile_registers(machine, lhs, rhs)) return ProductsPacked::kTileRegisters;
  if (has_faster_library(machine, rhs)) return ProductsPacked::kFastLibrary;
  if (is_short(rhs) && is_float(rhs) && dot_terms(machine, lhs, rhs) == 1)
    return ProductsPacked::kSlowLibrary;
  if (is_short(rhs)) return ProductsPacked::kShort;
  if (is_float(rhs) && machine.multiplies_tiles) return ProductsPacked::kLibraryNearPeak;
  return is_float(rhs) && machine.vector_bits < kBitsOfWideVectors ? ProductsPacked::kNarrowVectors
                                                                   : ProductsPacked::kWideVectors;
}

int64_t most_rows_summed(const Machine& machine, DType, DType rhs) {
  if (machine.vector_bits == 0) return 0;
  if (!is_float(rhs)) return RowsSummed::kIntegers;
  if (is_short(rhs)) return RowsSummed::kShort;
  if (machine.has_scarce_loads)
    return dtype_size(rhs) == 4 ? RowsSummed::kScarceLoads : RowsSummed::kScarceLoadsOfF64;
  return RowsSummed::kFloats;
}

}  // namespace mlcc::schedule
