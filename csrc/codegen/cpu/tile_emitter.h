// The code of a tile contraction (loop::Contract).
//
// The tile is cut into blocks whose sums fit the registers. A block keeps them there over all depth
// axes; a step of depth loads a vector per group of columns from B, and per row one word from A, in
// all lanes. Which instructions multiply and add is product.h's matter, how a tile is cut
// tile_plan.h's.
#pragma once

#include <functional>

#include "codegen/cpu/value.h"

namespace mlcc::codegen::cpu {

struct TileOperand {
  DType dtype = DType::kF32;
  llvm::Value* origin = nullptr;  // pointer
  Parts steps;                    // i64, in bytes; which axes: loop::TileRef
  Parts rows = {};  // i64, in bytes: where each row begins, if they are not equally far apart
  int64_t low_columns = 0;                           // as loop::TileRef
  std::function<void(llvm::Instruction*)> annotate;  // of each load and store
};

struct Contraction {
  TileOperand a, b, c;
  int64_t rows = 0, columns = 0;
  llvm::Value* live_columns = nullptr;  // i64; null: all
  Parts depths;                         // i64
  bool adds = false;
  llvm::Value* ahead = nullptr;  // pointer; as loop::LinesAhead
  int64_t ahead_shift = 0;
  bool is_ahead_soon = false;
};

// Asks for what lies ahead of the `bytes` of B that are read at `b`, see loop::LinesAhead.
void emit_lines_ahead(llvm::IRBuilder<>& ir, const Contraction& tile, llvm::Value* b,
                      int64_t bytes);

// At the builder's place. `vector_bits` as in EmitOptions.
void emit_contraction(const OpContext& c, int64_t vector_bits, Contraction contraction);

}  // namespace mlcc::codegen::cpu
