// One of sixteen numbers per lane: a permutation of a register where the CPU has one.
#pragma once

#include "codegen/cpu/math_tables.h"
#include "codegen/cpu/ops.h"

namespace mlcc::codegen::cpu {

// table[index mod 16]; `index` is an i32 or a vector of it. With AVX-512 one instruction for 16
// lanes, with AVX2 three for 8, else a load per lane.
llvm::Value* emit_lookup(const OpContext& c, const MathTable& table, llvm::Value* index);
// The same of f64; `index` is an i64 or a vector of it. With AVX-512 one instruction for 8 lanes.
llvm::Value* emit_lookup(const OpContext& c, const MathTable64& table, llvm::Value* index);

}  // namespace mlcc::codegen::cpu
