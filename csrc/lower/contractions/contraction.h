// Lowers a contraction and its epilogue. One phase, whose iterations are columns of tiles: the
// micro-kernel adds each tile up in a buffer of its own, from which the rest of the group is
// computed row by row and stored.
//
//   for %p in 0..blocks * panels parallel {
//     for %t in ..tiles of the block {
//       alloc %tile: stack f32[12 * 32]
//       contract %tile[0] .. = %lhs[..] .. * %rhs[..] .. tile(12, 32) ..
//       for %r in 0..12 { for %c in 0..32 vector(16) { .. store %out[..] = relu(%tile[..]) } }
//
// Tiles that would reach beyond the last row begin earlier: the rows that two of them have in
// common are computed twice, to the same bits.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

void lower_contraction(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered);

}  // namespace mlcc::lower
