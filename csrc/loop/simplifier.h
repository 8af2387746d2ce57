// Algebraic simplification of loop IR expressions: exact, also for floats.
//
//   before   (%i + 3) * 1 + 4       select(%b, %x, %x)      f32(f64(%x))     %x * 1.0 - 0.0
//   after    %i + 7                 %x                      %x               %x
//
// The result computes the same value for all inputs, bit by bit but for the sign and payload of a
// NaN and which of two zeros min and max give; it never divides where the original did not. No
// knowledge of ranges is used (see types/symbolic.h).
#pragma once

#include <span>

#include "loop/ir.h"
#include "loop/rewrite_rule.h"

namespace mlcc::loop {

Expr simplify(Arena& arena, Expr e);
Block simplify(Arena& arena, const Block& block);

// The rules that are plain algebra, for the tests; folding and casts are code.
std::span<const RewriteRule> simplifier_rules();

}  // namespace mlcc::loop
