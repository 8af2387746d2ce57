// Lowers gradients of attention. One phase, whose iterations are the heads: for each block of keys
// and each block of queries the weights and the gradients of scores are made as attention makes its
// scores (attention.h), in buffers of their own; three contractions take them from there, of which
// those for keys and values add up in buffers over all queries, the one for queries in memory
// (T. Dao: FlashAttention-2, 2023, has the same order of loops).
//
//   for %p in 0..heads parallel {
//     for %j in ..blocks of keys {
//       for %i in ..blocks of queries {
//         for %t in ..tiles {
//           contract %weights[..] .. = %queries[..] .. * %keys[..] ..
//           contract %of_scores[..] .. = %of_means[..] .. * %values[..] .. }
//         for %r in ..rows { .. exp .. store %weights .. store %of_scores .. }
//         contract %of_queries .. = %of_scores * %keys      and added to the result
//         contract %of_keys .. += %of_scores * %queries
//         contract %of_values .. += %weights * %of_means
//       }
//       store %of_keys, %of_values
//     }
//
// Pairs of blocks of which no query sees a key are not looked at.
#pragma once

#include "lower/context.h"
#include "lower/kernel_buffers.h"
#include "lower/lower.h"

namespace mlcc::lower {

void lower_attention_gradients(const Context& context, KernelBuffers& buffers,
                               LoweredKernel& lowered);

}  // namespace mlcc::lower
