#include "lower/element/philox.h"

namespace mlcc::lower {

using loop::Expr;
using loop::ScalarOp;

// The words are i64 below 2^32, whose products are exact; a key's sum with a constant is cut where
// it is used.
Expr philox(loop::Arena& arena, Expr counter, Expr seed, const std::function<Expr(Expr)>& let) {
  static constexpr int kRounds = 10;
  static constexpr int64_t kMultiplier = 0xD256D193;
  static constexpr int64_t kKeyStep = 0x9E3779B9;
  const auto number = [&](int64_t value) { return loop::int_constant(arena, value); };
  const auto apply = [&](ScalarOp op, Expr a, Expr b) { return loop::apply(arena, op, {a, b}); };
  const auto low = [&](Expr e) { return apply(ScalarOp::kAnd, e, number(0xFFFFFFFF)); };
  const auto high = [&](Expr e) { return apply(ScalarOp::kLshr, e, number(32)); };
  Expr left = let(low(counter));
  Expr right = let(high(apply(ScalarOp::kXor, counter, seed)));
  for (int64_t round = 0; round < kRounds; ++round) {
    const Expr product = let(apply(ScalarOp::kMul, left, number(kMultiplier)));
    const Expr key = let(low(apply(ScalarOp::kAdd, seed, number(round * kKeyStep))));
    left = let(apply(ScalarOp::kXor, apply(ScalarOp::kXor, high(product), key), right));
    right = let(low(product));
  }
  return let(loop::Cast::make(arena, DType::kI32, left));
}

}  // namespace mlcc::lower
