// Algebraic rules as constant data: a pattern, what replaces it, for which dtypes, and if what.
//
//   {"add-zero", kIntegers, call(kAdd, kX, 0), kX}                    x + 0 -> x
//   {"neg-neg", kNumbers, call(kNeg, call(kNeg, kX)), kX}             neg(neg(x)) -> x
//
// kX, kY, kZ match anything, kC and kD match constants; a name that occurs twice must match the
// same expression. An integer matches the constant of that value (modulo 2^width), kMinusZero the
// float -0.0 (0 matches only +0.0).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "loop/ir.h"

namespace mlcc::loop {

// A pattern is a tree, its nodes in prefix order.
enum class PatternKind : uint8_t { kAnything, kConstant, kNumber, kMinusZero, kOp };

struct PatternNode {
  PatternKind kind = PatternKind::kAnything;
  ScalarOp op = ScalarOp::kAdd;  // of an op
  int64_t value = 0;             // which name, or which number
};

struct Pattern {
  static constexpr size_t kMostNodes = 8;
  std::array<PatternNode, kMostNodes> nodes{};
  size_t size = 0;

  constexpr Pattern() = default;
  constexpr Pattern(PatternNode node) : size(1) {
    nodes[0] = node;
  }  // NOLINT(google-explicit-constructor)
  constexpr Pattern(int64_t number)  // NOLINT(google-explicit-constructor)
      : Pattern(PatternNode{PatternKind::kNumber, ScalarOp::kAdd, number}) {}
};

constexpr size_t kMostNames = 5;
inline constexpr Pattern kX = PatternNode{PatternKind::kAnything, ScalarOp::kAdd, 0};
inline constexpr Pattern kY = PatternNode{PatternKind::kAnything, ScalarOp::kAdd, 1};
inline constexpr Pattern kZ = PatternNode{PatternKind::kAnything, ScalarOp::kAdd, 2};
inline constexpr Pattern kC = PatternNode{PatternKind::kConstant, ScalarOp::kAdd, 3};
inline constexpr Pattern kD = PatternNode{PatternKind::kConstant, ScalarOp::kAdd, 4};
inline constexpr Pattern kMinusZero = PatternNode{PatternKind::kMinusZero, ScalarOp::kAdd, 0};

constexpr Pattern call(ScalarOp op, const Pattern& a, const Pattern& b = {},
                       const Pattern& c = {}) {
  Pattern pattern{PatternNode{PatternKind::kOp, op, 0}};
  for (const Pattern* arg : {&a, &b, &c})
    for (size_t i = 0; i < arg->size; ++i) pattern.nodes[pattern.size++] = arg->nodes[i];
  return pattern;
}

// Sets of dtypes, of the operands of the pattern's outermost op.
constexpr unsigned kBools = 1;
constexpr unsigned kUnsigned = 2;
constexpr unsigned kSigned = 4;   // i8 .. i64
constexpr unsigned kFloats = 8;   // f32, f64
constexpr unsigned kNarrow = 16;  // f16, bf16
constexpr unsigned kIntegers = kUnsigned | kSigned;
constexpr unsigned kNumbers = kIntegers | kFloats;
constexpr unsigned kLogical = kBools | kIntegers;
constexpr unsigned kEvery = kBools | kIntegers | kFloats | kNarrow;

using Bindings = std::array<Expr, kMostNames>;  // what the names matched; null where unbound

struct RewriteRule {
  std::string_view name;
  unsigned dtypes;
  Pattern pattern;
  Pattern replacement;
  bool (*condition)(const Bindings&) = nullptr;
};

unsigned dtype_set(DType dtype);

// What the names stand for if `e` has the form of the rule's pattern, its dtypes, and meets its
// condition.
std::optional<Bindings> match(const RewriteRule& rule, Expr e);

// Builds the tree of `pattern`: numbers take `dtype` (below an op: `operands`), nodes are made by
// `make`.
template <typename Make>
Expr build(Arena& arena, const Pattern& pattern, const Bindings& bindings, DType dtype,
           DType operands, const Make& make);

// ---- Inline parts -------------------------------------------------------------------------------

template <typename Make>
Expr build_node(Arena& arena, const Pattern& pattern, size_t& at, const Bindings& bindings,
                DType dtype, DType operands, const Make& make) {
  const PatternNode& node = pattern.nodes[at++];
  switch (node.kind) {
  case PatternKind::kAnything:
  case PatternKind::kConstant: return bindings[static_cast<size_t>(node.value)];
  case PatternKind::kNumber: return Constant::make_int(arena, dtype, node.value);
  case PatternKind::kMinusZero: return Constant::make_float(arena, dtype, -0.0);
  case PatternKind::kOp: break;
  }
  std::vector<Expr> args;
  for (int i = 0; i < scalar_op_arity(node.op); ++i)
    args.push_back(build_node(arena, pattern, at, bindings, operands, operands, make));
  return make(node.op, std::move(args));
}

template <typename Make>
Expr build(Arena& arena, const Pattern& pattern, const Bindings& bindings, DType dtype,
           DType operands, const Make& make) {
  size_t at = 0;
  return build_node(arena, pattern, at, bindings, dtype, operands, make);
}

}  // namespace mlcc::loop
