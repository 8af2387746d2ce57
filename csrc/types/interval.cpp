#include "types/interval.h"

#include "types/symbolic_terms.h"

namespace mlcc {
namespace {

// So that INT64_MAX and INT64_MIN stand for the infinities alone.
SymRange weaken(SymRange r) {
  return {std::min(r.low, INT64_MAX - 1), std::max(r.high, INT64_MIN + 1)};
}

int64_t saturated_add(int64_t a, int64_t b, int64_t infinity) {
  if (a == infinity || b == infinity) return infinity;
  int64_t sum;
  if (!__builtin_add_overflow(a, b, &sum)) return sum;
  return a < 0 ? INT64_MIN : INT64_MAX;
}

int64_t saturated_multiply(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  int64_t product;
  if (!is_infinite(a) && !is_infinite(b) && !__builtin_mul_overflow(a, b, &product)) return product;
  return (a < 0) == (b < 0) ? INT64_MAX : INT64_MIN;
}

}  // namespace

SymRange operator+(SymRange a, SymRange b) {
  return {saturated_add(a.low, b.low, kUnboundedLow),
          saturated_add(a.high, b.high, kUnboundedHigh)};
}

SymRange operator*(SymRange a, SymRange b) {
  a = weaken(a);
  b = weaken(b);
  const auto [low, high] =
      std::minmax({saturated_multiply(a.low, b.low), saturated_multiply(a.low, b.high),
                   saturated_multiply(a.high, b.low), saturated_multiply(a.high, b.high)});
  return {low, high};
}

int64_t negate_low(int64_t low) { return low == kUnboundedLow ? kUnboundedHigh : -low; }

SymRange round_to_multiples(SymRange range, int64_t divisor) {
  if (divisor == 1) return range;
  if (!is_infinite(range.high)) range.high -= floor_modulo(range.high, divisor);
  if (!is_infinite(range.low)) {
    const int64_t above = floor_modulo(range.low, divisor);
    if (above != 0) range.low = saturated_add(range.low, divisor - above, kUnboundedLow);
  }
  return range;
}

SymRange floordiv_range(SymRange a, SymRange b) {
  a = weaken(a);
  b = intersect(b, {1, kUnboundedHigh});
  if (is_empty(b)) return kUnbounded;
  // An unbounded divisor is the limit of ever larger ones.
  const auto divide_by_high = [&](int64_t end) {
    if (b.high != kUnboundedHigh) return floor_divide(end, b.high);
    return int64_t{end < 0 ? -1 : 0};
  };
  const auto divide_by_low = [&](int64_t end) {
    return is_infinite(end) ? end : floor_divide(end, b.low);
  };
  return {a.low >= 0 ? divide_by_high(a.low) : divide_by_low(a.low),
          a.high >= 0 ? divide_by_low(a.high) : divide_by_high(a.high)};
}

SymRange mod_range(SymRange a, SymRange b) {
  b = intersect(b, {1, kUnboundedHigh});
  if (is_empty(b)) return kUnbounded;
  if (a.low >= 0 && a.high < b.low) return a;
  SymRange result{0, b.high == kUnboundedHigh ? kUnboundedHigh : b.high - 1};
  if (a.low >= 0) result.high = std::min(result.high, a.high);
  return result;
}

}  // namespace mlcc
