// Philox 2x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011): random bits
// as a function of a counter and a seed, with no state that a loop would have to carry.
#pragma once

#include <cstdint>
#include <functional>

#include "loop/ir.h"

namespace mlcc::lower {

// What one element costs, in ops.
inline constexpr int64_t kPhiloxOps = 60;

// 32 random bits as an i32, from a counter and a seed (both i64). The counter's lower half and the
// xor of both upper halves are what is mixed, the seed's lower half is the key. `let` names a value
// that is used more than once.
loop::Expr philox(loop::Arena& arena, loop::Expr counter, loop::Expr seed,
                  const std::function<loop::Expr(loop::Expr)>& let);

}  // namespace mlcc::lower
