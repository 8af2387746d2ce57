// Tile contractions in AMX's tile registers, which hold 16 rows of 64 bytes: one instruction
// multiplies two of them and adds up to a third.
#pragma once

#include "codegen/cpu/tile_emitter.h"

namespace mlcc::codegen::cpu {

// The code of a contraction without live columns. Words of terms (as product.h has them) behind a
// multiple of 16 fill a part of the registers where their number is known; else they are a
// contraction of their own, which `emit_rest` emits. False, and nothing is emitted, where the
// machine, the dtypes or the layout have no such code: the innermost depth axis is a word, A's
// words lie side by side, and so do B's columns.
bool emit_tile_registers(const OpContext& c, const Contraction& contraction,
                         llvm::function_ref<void(const Contraction&)> emit_rest);

// Before each return of a whole function that emitted such code: registers that nobody released are
// saved and restored whenever the system runs another thread.
void release_tile_registers(llvm::Function& function);

}  // namespace mlcc::codegen::cpu
