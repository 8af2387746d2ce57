#include "runtime/size_expr.h"

#include <algorithm>
#include <array>

#include "support/error.h"

namespace mlcc::runtime {
namespace {

// Deeper expressions than this take their stack from the heap.
constexpr size_t kInlineDepth = 16;
// Code that is read makes no polynomial of more terms: products of sums grow fast.
constexpr int64_t kMostTerms = 4096;

int64_t floor_divide(int64_t a, int64_t b) {
  MLCC_USER_CHECK(b > 0, "size expression: division of ", a, " by ", b);
  const int64_t quotient = a / b;
  return a % b < 0 ? quotient - 1 : quotient;
}

}  // namespace

SizeExpr::Code SizeExpr::binary(Kind kind, Code a, const Code& b) {
  a.insert(a.end(), b.begin(), b.end());
  a.push_back({kind, 0});
  return a;
}

SizeExpr::SizeExpr(const SymExpr& expr, const std::function<int32_t(std::string_view)>& index_of) {
  const auto binary_of = [](Kind kind) {
    return [kind](Code a, Code b) { return binary(kind, std::move(a), b); };
  };
  SymExpr::Visitor<Code> visitor;
  visitor.constant = [](int64_t value) { return Code{{Kind::kConstant, value}}; };
  visitor.symbol = [&](std::string_view name) { return Code{{Kind::kSymbol, index_of(name)}}; };
  visitor.add = binary_of(Kind::kAdd);
  visitor.multiply = binary_of(Kind::kMultiply);
  visitor.floordiv = binary_of(Kind::kFloorDiv);
  visitor.mod = binary_of(Kind::kMod);
  visitor.min = binary_of(Kind::kMin);
  visitor.max = binary_of(Kind::kMax);
  code_ = expr.visit(visitor);

  size_t depth = 0;
  for (const Instruction& instruction : code_) {
    const bool pushes = instruction.kind == Kind::kConstant || instruction.kind == Kind::kSymbol;
    depth = pushes ? depth + 1 : depth - 1;
    depth_ = std::max(depth_, depth);
  }
}

SymExpr SizeExpr::expression_of(const Code& code,
                                const std::function<std::string_view(int64_t)>& name_of) {
  struct Value {
    SymExpr expr;
    int64_t terms;  // at most, of the polynomial
  };
  std::vector<Value> stack;
  for (const Instruction& instruction : code) {
    if (instruction.kind == Kind::kConstant) {
      stack.push_back({instruction.operand, 1});
      continue;
    }
    if (instruction.kind == Kind::kSymbol) {
      stack.push_back({SymExpr::symbol(name_of(instruction.operand)), 1});
      continue;
    }
    MLCC_USER_CHECK(stack.size() >= 2, "size expression: an operation without operands");
    const Value b = std::move(stack.back());
    stack.pop_back();
    Value& a = stack.back();
    a.terms = instruction.kind == Kind::kAdd        ? a.terms + b.terms
              : instruction.kind == Kind::kMultiply ? a.terms * b.terms
                                                    : 1;
    MLCC_USER_CHECK(a.terms <= kMostTerms, "size expression: more than ", kMostTerms, " terms");
    a.expr = combine(instruction.kind, a.expr, b.expr);
  }
  MLCC_USER_CHECK(stack.size() == 1, "size expression: found ", stack.size(),
                  " values, expected one");
  return stack[0].expr;
}

SymExpr SizeExpr::combine(Kind kind, const SymExpr& a, const SymExpr& b) {
  switch (kind) {
  case Kind::kAdd: return a + b;
  case Kind::kMultiply: return a * b;
  case Kind::kFloorDiv: return SymExpr::floordiv(a, b);
  case Kind::kMod: return SymExpr::mod(a, b);
  case Kind::kMin: return SymExpr::min(a, b);
  case Kind::kMax: return SymExpr::max(a, b);
  case Kind::kConstant:
  case Kind::kSymbol: break;
  }
  MLCC_UNREACHABLE("size expression: an operand where an operation is due");
}

int64_t SizeExpr::evaluate(std::span<const int64_t> symbols) const {
  if (depth_ <= kInlineDepth) {
    std::array<int64_t, kInlineDepth> stack;
    return run(symbols, stack.data());
  }
  std::vector<int64_t> stack(depth_);
  return run(symbols, stack.data());
}

int64_t SizeExpr::run(std::span<const int64_t> symbols, int64_t* stack) const {
  size_t size = 0;
  for (const Instruction& instruction : code_) {
    if (instruction.kind == Kind::kConstant) {
      stack[size++] = instruction.operand;
    } else if (instruction.kind == Kind::kSymbol) {
      stack[size++] = symbols[static_cast<size_t>(instruction.operand)];
    } else {
      --size;
      stack[size - 1] = apply(instruction.kind, stack[size - 1], stack[size]);
    }
  }
  return stack[0];
}

int64_t SizeExpr::apply(Kind kind, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (kind) {
  case Kind::kAdd:
    MLCC_USER_CHECK(!__builtin_add_overflow(a, b, &result), "size ", a, " + ", b, ": overflow");
    return result;
  case Kind::kMultiply:
    MLCC_USER_CHECK(!__builtin_mul_overflow(a, b, &result), "size ", a, " * ", b, ": overflow");
    return result;
  case Kind::kFloorDiv: return floor_divide(a, b);
  case Kind::kMod: return a - floor_divide(a, b) * b;
  case Kind::kMin: return std::min(a, b);
  case Kind::kMax: return std::max(a, b);
  case Kind::kConstant:
  case Kind::kSymbol: break;
  }
  MLCC_UNREACHABLE("size expression: an operand where an operation is due");
}

}  // namespace mlcc::runtime
