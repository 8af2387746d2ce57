// Lowers attention and what follows it. One phase, whose iterations are a few tiles of queries;
// their scores are never in memory as a whole. For each block of keys a tile's scores are
// contracted into a buffer of its own, masked and scaled there by whatever lies between the
// contraction and the scores, and turned into weights; what was added up so far is repaired where a
// larger score was found (M. Milakov, N. Gimelshein: Online normalizer calculation for softmax,
// 2018), and the weights are the left operand of the next contraction.
//
//   for %p in 0..heads * tasks parallel {
//     for %b in ..blocks of keys {
//       for %t in ..tiles {
//         contract %scores[..] .. = %queries[..] .. * %keys[..] .. tile(12, 32) ..
//         for %r in 0..12 { .. reduce .. max .. -> %most .. reduce .. exp .. -> %sum .. }
//         contract %out[..] .. += %scores[..] .. * %values[..] .. tile(12, 64) ..
//       }
//     }
//     for %t in ..tiles { for %r in 0..12 { .. store .. } }
//
// Blocks of keys that the range leaves out for all rows of a tile are not looked at.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

void lower_attention(const Context& context, KernelBuffers& buffers, LoweredKernel& lowered);

}  // namespace mlcc::lower
