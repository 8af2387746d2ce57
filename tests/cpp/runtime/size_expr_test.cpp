#include "runtime/size_expr.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "support/error.h"

namespace mlcc::runtime {
namespace {

const std::vector<std::string> kNames = {"s0", "s1", "u0"};

int32_t index_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i)
    if (kNames[i] == name) return static_cast<int32_t>(i);
  throw Error("unknown symbol");
}

int64_t evaluate(const SymExpr& expr, const std::vector<int64_t>& values) {
  return SizeExpr(expr, index_of).evaluate(values);
}

TEST(SizeExpr, EvaluatesEveryKindOfAtom) {
  EXPECT_EQ(evaluate(SymExpr(7), {}), 7);
  EXPECT_EQ(evaluate(SymExpr::parse("s1"), {3, 5, 0}), 5);
  EXPECT_EQ(evaluate(SymExpr::parse("s0*s1*2 - 3"), {3, 5, 0}), 27);
  EXPECT_EQ(evaluate(SymExpr::parse("floordiv(s0 - 10, 4)"), {3, 0, 0}), -2);
  EXPECT_EQ(evaluate(SymExpr::parse("mod(s0 - 10, 4)"), {3, 0, 0}), 1);
  EXPECT_EQ(evaluate(SymExpr::parse("min(s0, s1) + max(s0, u0)"), {3, 5, 9}), 12);
}

TEST(SizeExpr, AgreesWithTheReference) {
  std::mt19937 random(11);
  const auto number = [&](int n) {
    return static_cast<int64_t>(random() % static_cast<unsigned>(n));
  };
  for (int round = 0; round < 500; ++round) {
    SymExpr expr(number(9));
    for (int i = 0; i < 6; ++i) {
      const SymExpr atom = number(3) == 0 ? SymExpr(number(9))
                                          : SymExpr::symbol(kNames[static_cast<size_t>(number(3))]);
      switch (number(6)) {
      case 0: expr = expr + atom; break;
      case 1: expr = expr - atom; break;
      case 2: expr = expr * atom; break;
      case 3: expr = SymExpr::floordiv(expr, atom + SymExpr(1)); break;
      case 4: expr = SymExpr::mod(expr, atom + SymExpr(1)); break;
      default: expr = SymExpr::max(expr, atom); break;
      }
    }
    const std::vector<int64_t> values = {number(20), number(20), number(20)};
    const int64_t expected = expr.evaluate(
        [&](std::string_view name) { return values[static_cast<size_t>(index_of(name))]; });
    EXPECT_EQ(evaluate(expr, values), expected) << expr.str();
  }
}

TEST(SizeExpr, DeepExpressionsTakeTheirStackFromTheHeap) {
  SymExpr expr = SymExpr::symbol("s0");
  for (int i = 0; i < 40; ++i)
    expr = SymExpr::max(SymExpr(i), SymExpr::floordiv(expr + SymExpr(i), SymExpr(2)));
  const int64_t expected = expr.evaluate([](std::string_view) { return int64_t{1000}; });
  EXPECT_EQ(evaluate(expr, {1000, 0, 0}), expected);
}

TEST(SizeExpr, RefusesBadDivisorsAndOverflow) {
  EXPECT_THROW(evaluate(SymExpr::parse("floordiv(s0, s1)"), {3, 0, 0}), Error);
  EXPECT_THROW(evaluate(SymExpr::parse("mod(s0, s1)"), {3, -2, 0}), Error);
  EXPECT_THROW(evaluate(SymExpr::parse("s0*s0"), {int64_t{1} << 40, 0, 0}), Error);
}

TEST(SizeExpr, CodeGivesTheExpressionAgain) {
  const auto index_of = [](std::string_view name) { return name == "s0" ? 0 : 1; };
  const auto name_of = [](int64_t index) -> std::string_view { return index == 0 ? "s0" : "s1"; };
  for (const char* text :
       {"7", "s0", "s0*s1*2 - 3", "floordiv(s0 + 1, 2) + mod(s1, 4)", "max(s0, min(s1, 8))"}) {
    const SymExpr expr = SymExpr::parse(text);
    EXPECT_EQ(SizeExpr::expression_of(SizeExpr(expr, index_of).code(), name_of), expr) << text;
  }
  using Kind = SizeExpr::Kind;
  EXPECT_THROW((void)SizeExpr::expression_of({{Kind::kAdd, 0}}, name_of), Error);
  EXPECT_THROW((void)SizeExpr::expression_of({{Kind::kConstant, 1}, {Kind::kConstant, 2}}, name_of),
               Error);
  EXPECT_THROW((void)SizeExpr::expression_of({}, name_of), Error);
  SizeExpr::Code product = SizeExpr(SymExpr::parse("s0 + s1 + 1"), index_of).code();
  const SizeExpr::Code factor = product;
  for (int i = 0; i < 20; ++i) {
    product.insert(product.end(), factor.begin(), factor.end());
    product.push_back({Kind::kMultiply, 0});
  }
  EXPECT_THROW((void)SizeExpr::expression_of(product, name_of), Error);
}

}  // namespace
}  // namespace mlcc::runtime
