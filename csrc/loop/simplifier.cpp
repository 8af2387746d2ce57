#include "loop/simplifier.h"

#include <array>
#include <cmath>

#include "loop/mutator.h"
#include "loop/scalar_value.h"

namespace mlcc::loop {
namespace {

using enum ScalarOp;

bool is_x_variable(const Bindings& names) { return names[0]->kind != ExprKind::kConstant; }

constexpr Pattern kTrue = 1;
constexpr Pattern kFalse = 0;

constexpr RewriteRule kRules[] = {
    // Constants stand on the right, sums of constants together.
    {"add-constant-left", kNumbers, call(kAdd, kC, kX), call(kAdd, kX, kC), is_x_variable},
    {"mul-constant-left", kNumbers, call(kMul, kC, kX), call(kMul, kX, kC), is_x_variable},
    {"add-add", kIntegers, call(kAdd, call(kAdd, kX, kC), kD), call(kAdd, kX, call(kAdd, kC, kD))},
    {"sub-add", kIntegers, call(kSub, call(kAdd, kX, kC), kD), call(kAdd, kX, call(kSub, kC, kD))},
    {"add-sub", kIntegers, call(kAdd, call(kSub, kX, kC), kD), call(kAdd, kX, call(kSub, kD, kC))},
    {"sub-sub", kIntegers, call(kSub, call(kSub, kX, kC), kD), call(kSub, kX, call(kAdd, kC, kD))},
    {"mul-mul", kIntegers, call(kMul, call(kMul, kX, kC), kD), call(kMul, kX, call(kMul, kC, kD))},
    {"min-min", kIntegers, call(kMin, call(kMin, kX, kC), kD), call(kMin, kX, call(kMin, kC, kD))},
    {"max-max", kIntegers, call(kMax, call(kMax, kX, kC), kD), call(kMax, kX, call(kMax, kC, kD))},

    // Neutral and absorbing elements. x + 0.0 is not x where x is -0.0, but x - 0.0 is.
    {"add-zero", kIntegers, call(kAdd, kX, 0), kX},
    {"add-minus-zero", kFloats, call(kAdd, kX, kMinusZero), kX},
    {"sub-zero", kNumbers, call(kSub, kX, 0), kX},
    {"mul-one", kNumbers, call(kMul, kX, 1), kX},
    {"mul-zero", kIntegers, call(kMul, kX, 0), 0},
    {"mul-minus-one", kNumbers, call(kMul, kX, -1), call(kNeg, kX)},
    {"div-one", kFloats, call(kDiv, kX, 1), kX},
    {"truncdiv-one", kIntegers, call(kTruncDiv, kX, 1), kX},
    {"floordiv-one", kIntegers, call(kFloorDiv, kX, 1), kX},
    {"rem-one", kIntegers, call(kRem, kX, 1), 0},
    {"mod-one", kIntegers, call(kMod, kX, 1), 0},
    {"shl-zero", kIntegers, call(kShl, kX, 0), kX},
    {"shr-zero", kIntegers, call(kShr, kX, 0), kX},
    {"lshr-zero", kIntegers, call(kLshr, kX, 0), kX},
    {"fma-one", kFloats, call(kFma, kX, 1, kY), call(kAdd, kX, kY)},
    {"fma-one-left", kFloats, call(kFma, 1, kX, kY), call(kAdd, kX, kY)},
    {"fma-minus-zero", kFloats, call(kFma, kX, kY, kMinusZero), call(kMul, kX, kY)},

    // Signs.
    {"neg-neg", kNumbers, call(kNeg, call(kNeg, kX)), kX},
    {"add-neg", kNumbers, call(kAdd, kX, call(kNeg, kY)), call(kSub, kX, kY)},
    {"neg-add", kNumbers, call(kAdd, call(kNeg, kX), kY), call(kSub, kY, kX)},
    {"sub-neg", kNumbers, call(kSub, kX, call(kNeg, kY)), call(kAdd, kX, kY)},
    {"neg-mul-neg", kNumbers, call(kMul, call(kNeg, kX), call(kNeg, kY)), call(kMul, kX, kY)},
    {"zero-sub", kIntegers, call(kSub, 0, kX), call(kNeg, kX)},
    {"abs-neg", kSigned | kFloats, call(kAbs, call(kNeg, kX)), call(kAbs, kX)},
    {"abs-abs", kNumbers, call(kAbs, call(kAbs, kX)), call(kAbs, kX)},

    // Equal operands.
    {"sub-self", kIntegers, call(kSub, kX, kX), 0},
    {"min-self", kNumbers, call(kMin, kX, kX), kX},
    {"max-self", kNumbers, call(kMax, kX, kX), kX},
    {"and-self", kLogical, call(kAnd, kX, kX), kX},
    {"or-self", kLogical, call(kOr, kX, kX), kX},
    {"xor-self", kLogical, call(kXor, kX, kX), 0},
    {"eq-self", kLogical, call(kEq, kX, kX), kTrue},
    {"le-self", kLogical, call(kLe, kX, kX), kTrue},
    {"ge-self", kLogical, call(kGe, kX, kX), kTrue},
    {"ne-self", kLogical, call(kNe, kX, kX), kFalse},
    {"lt-self", kLogical | kFloats, call(kLt, kX, kX), kFalse},
    {"gt-self", kLogical | kFloats, call(kGt, kX, kX), kFalse},

    // Rounding twice.
    {"floor-floor", kFloats, call(kFloor, call(kFloor, kX)), call(kFloor, kX)},
    {"ceil-ceil", kFloats, call(kCeil, call(kCeil, kX)), call(kCeil, kX)},
    {"trunc-trunc", kFloats, call(kTrunc, call(kTrunc, kX)), call(kTrunc, kX)},
    {"round-round", kFloats, call(kRound, call(kRound, kX)), call(kRound, kX)},

    // Logic. The order of floats is not total: only == and != are each other's negation.
    {"not-not", kLogical, call(kNot, call(kNot, kX)), kX},
    {"and-zero", kLogical, call(kAnd, kX, 0), 0},
    {"zero-and", kLogical, call(kAnd, 0, kX), 0},
    {"or-zero", kLogical, call(kOr, kX, 0), kX},
    {"zero-or", kLogical, call(kOr, 0, kX), kX},
    {"xor-zero", kLogical, call(kXor, kX, 0), kX},
    {"zero-xor", kLogical, call(kXor, 0, kX), kX},
    {"and-true", kBools, call(kAnd, kX, kTrue), kX},
    {"true-and", kBools, call(kAnd, kTrue, kX), kX},
    {"or-true", kBools, call(kOr, kX, kTrue), kTrue},
    {"true-or", kBools, call(kOr, kTrue, kX), kTrue},
    {"xor-true", kBools, call(kXor, kX, kTrue), call(kNot, kX)},
    {"eq-true", kBools, call(kEq, kX, kTrue), kX},
    {"ne-true", kBools, call(kNe, kX, kTrue), call(kNot, kX)},
    {"eq-false", kBools, call(kEq, kX, kFalse), call(kNot, kX)},
    {"ne-false", kBools, call(kNe, kX, kFalse), kX},

    // Choices.
    {"select-self", kEvery, call(kSelect, kX, kY, kY), kY},
    {"select-true", kEvery, call(kSelect, kTrue, kX, kY), kX},
    {"select-false", kEvery, call(kSelect, kFalse, kX, kY), kY},
    {"select-not", kEvery, call(kSelect, call(kNot, kX), kY, kZ), call(kSelect, kX, kZ, kY)},
    {"select-is", kBools, call(kSelect, kX, kTrue, kFalse), kX},
    {"select-is-not", kBools, call(kSelect, kX, kFalse, kTrue), call(kNot, kX)},
};

// Comparisons whose negation is one, for operands with a total order (and == and != for all).
struct Negation {
  ScalarOp op, negated;
  bool is_for_floats;
};

constexpr Negation kNegations[] = {{kEq, kNe, true},  {kNe, kEq, true},  {kLt, kGe, false},
                                   {kGe, kLt, false}, {kGt, kLe, false}, {kLe, kGt, false}};

bool is_foldable(ScalarOp op) {
  // Compiled code may differ from the interpreter by a few ULP here.
  return scalar_op_class(op) != OpClass::kFunction;
}

// Whether every value of `from` is one of `to`.
bool is_exact_cast(DType from, DType to) {
  if (from == to || from == DType::kBool) return true;
  if (to == DType::kBool) return false;
  if (is_float(from)) return is_float(to) && dtype_size(to) > dtype_size(from);
  if (is_float(to)) {
    // Bits of an integer that the significand holds.
    const int64_t bits = to == DType::kF64   ? 53
                         : to == DType::kF32 ? 24
                         : to == DType::kF16 ? 11
                                             : 8;
    return dtype_size(from) * 8 <= bits;
  }
  if (is_signed_integer(from)) return is_signed_integer(to) && dtype_size(to) > dtype_size(from);
  return dtype_size(to) > dtype_size(from);
}

class Simplifier : public Mutator {
 public:
  using Mutator::Mutator;

 protected:
  // Operands are simple already. Every replacement is made of simple parts, by make(), so one step
  // is enough.
  Expr rewrite(Expr e) override {
    switch (e->kind) {
    case ExprKind::kConstant:
    case ExprKind::kVariable: return e;
    case ExprKind::kLoad: return rewrite_load(*as<Load>(e));
    case ExprKind::kApply: return rewrite_apply(*as<Apply>(e));
    case ExprKind::kCast: return rewrite_cast(*as<Cast>(e));
    }
    return e;
  }

 private:
  Expr make(ScalarOp op, std::vector<Expr> args) {
    return rewrite(Apply::make(arena_, op, std::move(args)));
  }
  Expr make_cast(DType dtype, Expr value) { return rewrite(Cast::make(arena_, dtype, value)); }

  Expr rewrite_load(const Load& load) {
    const auto* mask = as<Constant>(load.mask);
    if (mask == nullptr) return &load;
    if (mask->bits != 0) return Load::make(arena_, load.buffer, load.indices);
    return load.otherwise != nullptr ? load.otherwise : Constant::make(arena_, load.dtype, 0);
  }

  Expr rewrite_apply(const Apply& apply) {
    if (const Expr folded = fold(apply)) return folded;
    const DType operands = apply.args.back()->dtype;
    for (const RewriteRule& rule : kRules) {
      const auto bindings = match(rule, &apply);
      if (!bindings) continue;
      return build(arena_, rule.replacement, *bindings, apply.dtype, operands,
                   [&](ScalarOp op, std::vector<Expr> args) { return make(op, std::move(args)); });
    }
    if (apply.op == kNot) return rewrite_not(apply);
    return apply.op == kSelect ? rewrite_select(apply) : &apply;
  }

  Expr fold(const Apply& apply) {
    std::array<uint64_t, 3> bits{};
    for (size_t i = 0; i < apply.args.size(); ++i) {
      const auto* constant = as<Constant>(apply.args[i]);
      if (constant == nullptr) return nullptr;
      bits[i] = constant->bits;
    }
    if (!is_foldable(apply.op)) return nullptr;
    const DType operands = apply.args.back()->dtype;
    const auto value = evaluate(apply.op, operands, std::span(bits).first(apply.args.size()));
    return value ? Constant::make(arena_, apply.dtype, *value) : nullptr;
  }

  Expr rewrite_not(const Apply& apply) {
    const auto* inner = as<Apply>(apply.args[0]);
    if (inner == nullptr || apply.dtype != DType::kBool) return &apply;
    for (const Negation& row : kNegations)
      if (inner->op == row.op && (row.is_for_floats || !is_float(inner->args[0]->dtype)))
        return make(row.negated, inner->args);
    return &apply;
  }

  // An arm that asks the same question again knows the answer.
  Expr rewrite_select(const Apply& apply) {
    const Expr condition = apply.args[0];
    const auto arm = [&](size_t i) {
      const auto* inner = as<Apply>(apply.args[i]);
      const bool is_same = inner != nullptr && inner->op == kSelect && inner->args[0] == condition;
      return is_same ? inner->args[i] : apply.args[i];
    };
    if (arm(1) == apply.args[1] && arm(2) == apply.args[2]) return &apply;
    return make(kSelect, {condition, arm(1), arm(2)});
  }

  Expr rewrite_cast(const Cast& cast) {
    if (const auto* constant = as<Constant>(cast.value)) return fold_cast(cast, *constant);
    const auto* inner = as<Cast>(cast.value);
    if (inner == nullptr) return &cast;
    const DType from = inner->value->dtype;
    // Integers: what is cut off at the end need not pass through a type that holds it.
    const bool is_cut = is_integer(from) && is_integer(inner->dtype) && is_integer(cast.dtype) &&
                        dtype_size(cast.dtype) <= dtype_size(inner->dtype);
    if (!is_cut && !is_exact_cast(from, inner->dtype)) return &cast;
    return make_cast(cast.dtype, inner->value);
  }

  Expr fold_cast(const Cast& cast, const Constant& constant) {
    const bool is_truncation = is_float(constant.dtype) && is_integer(cast.dtype);
    // Out of range the result is unspecified: left to whoever runs it.
    constexpr double kSafe = 127;
    if (is_truncation && !(std::abs(constant.as_double()) <= kSafe &&
                           (constant.as_double() >= 0 || is_signed_integer(cast.dtype))))
      return &cast;
    return Constant::make(arena_, cast.dtype, convert(constant.dtype, cast.dtype, constant.bits));
  }
};

}  // namespace

Expr simplify(Arena& arena, Expr e) { return Simplifier(arena).mutate(e); }

Block simplify(Arena& arena, const Block& block) { return Simplifier(arena).mutate(block); }

std::span<const RewriteRule> simplifier_rules() { return kRules; }

}  // namespace mlcc::loop
