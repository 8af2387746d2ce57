// Tile contractions in AMX's tile registers, which hold 16 rows of 64 bytes: one instruction
// multiplies two of them and adds up to a third.
#pragma once

#include "codegen/cpu/tile_emitter.h"

namespace mlcc::codegen::cpu {

// The code of a contraction without live columns. Terms that do not fill tile registers (words, as
// product.h has them, behind a multiple of 16) are a contraction of their own, which `emit_rest`
// emits. False, and nothing is emitted, where the machine, the dtypes or the layout have no such
// code: the innermost depth axis is a word, A's words lie side by side, and so do B's columns.
bool emit_tile_registers(const OpContext& c, const Contraction& contraction,
                         llvm::function_ref<void(const Contraction&)> emit_rest);

}  // namespace mlcc::codegen::cpu
