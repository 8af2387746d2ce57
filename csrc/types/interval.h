// Interval arithmetic on SymRange that never overflows.
//
// A low end of INT64_MIN and a high end of INT64_MAX mean unbounded. A result beyond int64 is
// replaced by the weakest true statement: its low end by at most INT64_MAX, its high end by at
// least INT64_MIN.
#pragma once

#include <algorithm>
#include <cstdint>

#include "types/symbolic.h"

namespace mlcc {

constexpr SymRange kUnbounded{kUnboundedLow, kUnboundedHigh};

inline bool is_infinite(int64_t end) { return end == kUnboundedLow || end == kUnboundedHigh; }
inline bool is_empty(SymRange r) { return r.low > r.high; }
inline SymRange intersect(SymRange a, SymRange b) {
  return {std::max(a.low, b.low), std::min(a.high, b.high)};
}

SymRange operator+(SymRange a, SymRange b);
SymRange operator*(SymRange a, SymRange b);
// The high end of -e from the low end of e.
int64_t negate_low(int64_t low);
// The multiples of `divisor` (> 0) in the range.
SymRange round_to_multiples(SymRange range, int64_t divisor);
// Of floordiv(a, b) and mod(a, b), given that b is positive.
SymRange floordiv_range(SymRange a, SymRange b);
SymRange mod_range(SymRange a, SymRange b);

}  // namespace mlcc
