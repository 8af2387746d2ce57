#include "types/symbolic.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/error.h"
#include "support/lexer.h"

namespace mlcc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SymExpr parse(std::string_view text) { return SymExpr::parse(text); }

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

int64_t evaluate(const SymExpr& e, const std::map<std::string, int64_t, std::less<>>& values) {
  return e.evaluate([&](std::string_view name) { return values.find(name)->second; });
}

// ---- Polynomials ----

TEST(SymExpr, constants_fold) {
  EXPECT_TRUE(SymExpr().equals_constant(0));
  EXPECT_EQ((SymExpr(3) + 4 * SymExpr(5)).as_constant(), 23);
  EXPECT_EQ(SymExpr::floordiv(-7, 2).as_constant(), -4);
  EXPECT_EQ(SymExpr::mod(-7, 2).as_constant(), 1);
  EXPECT_EQ(SymExpr::min(-7, 2).as_constant(), -7);
  EXPECT_EQ(SymExpr::max(-7, 2).as_constant(), 2);
  EXPECT_EQ((-SymExpr(3)).as_constant(), -3);
}

TEST(SymExpr, text_does_not_depend_on_the_order_of_building) {
  const SymExpr a = SymExpr::symbol("a");
  const SymExpr b = SymExpr::symbol("b");
  const SymExpr c = SymExpr::symbol("c");
  const SymExpr x = (a + b) * (b - c) + 3;
  const SymExpr y = 3 - c * a + b * a - (c - b) * b;
  EXPECT_EQ(x, y);
  EXPECT_EQ(x.str(), "a*b - a*c + b*b - b*c + 3");
  EXPECT_EQ(x.str(), y.str());
  EXPECT_EQ(x <=> y, std::strong_ordering::equal);
}

TEST(SymExpr, prints_as_the_header_says) {
  EXPECT_EQ(parse("floordiv(s1,4)+2*s0-1").str(), "s0*2 + floordiv(s1, 4) - 1");
  EXPECT_EQ(parse("-s0").str(), "-s0");
  EXPECT_EQ(parse("3 - s0*s0*2").str(), "-s0*s0*2 + 3");
  EXPECT_EQ(parse("s0 - s0").str(), "0");
  EXPECT_EQ(parse("-5").str(), "-5");
}

TEST(SymExpr, compound_operators) {
  SymExpr e = SymExpr::symbol("a");
  e += 2;
  e *= SymExpr::symbol("b");
  e -= 1;
  EXPECT_EQ(e.str(), "a*b + b*2 - 1");
}

TEST(SymExpr, overflow_is_an_error) {
  const SymExpr s = SymExpr::symbol("s");
  EXPECT_THROW(SymExpr(INT64_MAX) + 1, Error);
  EXPECT_THROW(SymExpr(INT64_MIN) - 1, Error);
  EXPECT_THROW(SymExpr(INT64_MAX) * 2, Error);
  EXPECT_THROW(s * INT64_MAX + s, Error);
  EXPECT_THROW(s * INT64_MAX * 2, Error);
  EXPECT_THROW(-(s * INT64_MIN), Error);
  EXPECT_THROW(evaluate(s * s, {{"s", INT64_MAX}}), Error);
  EXPECT_THROW(evaluate(s + 1, {{"s", INT64_MAX}}), Error);
  EXPECT_THAT(message_of([] { parse("9223372036854775807 + 1"); }), HasSubstr("overflows"));
}

TEST(SymExpr, the_extremes_print_and_parse) {
  const SymExpr s = SymExpr::symbol("s");
  for (const SymExpr& e : {SymExpr(INT64_MIN), s * INT64_MIN + INT64_MIN, s * INT64_MAX + INT64_MAX,
                           s * s * INT64_MIN - s * INT64_MAX}) {
    EXPECT_EQ(parse(e.str()), e);
    EXPECT_EQ(parse(e.str()).str(), e.str());
  }
  EXPECT_EQ((s * INT64_MIN + INT64_MIN).str(), "s*-9223372036854775808 + -9223372036854775808");
}

TEST(SymExpr, names_that_are_no_identifiers_print_with_a_percent_sign) {
  EXPECT_EQ(SymExpr::symbol("0").str(), "%0");
  EXPECT_EQ((SymExpr::symbol("inf") * SymExpr::symbol("i.1")).str(), "i.1*%inf");
  EXPECT_EQ(parse("%0").as_symbol(), "0");
  EXPECT_EQ(parse("%s0"), parse("s0"));
  EXPECT_EQ(parse("min + mod"), SymExpr::symbol("mod") + SymExpr::symbol("min"));
  for (const char* name : {"", ".a", "a.", "a..b", "a b", "a-b", "%a"})
    EXPECT_THROW(SymExpr::symbol(name), Error) << name;
}

// ---- floordiv, mod, min, max ----

struct Row {
  const char* input;
  const char* expected;
};

class PlainConstructor : public ::testing::TestWithParam<Row> {};

TEST_P(PlainConstructor, normalizes) {
  EXPECT_EQ(parse(GetParam().input).str(), GetParam().expected);
  EXPECT_EQ(parse(GetParam().expected).str(), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    SymExpr, PlainConstructor,
    ::testing::Values(
        Row{"floordiv(s0, 1)", "s0"}, Row{"mod(s0, 1)", "0"}, Row{"floordiv(0, s0)", "0"},
        Row{"floordiv(s0, s0)", "1"}, Row{"mod(s0, s0)", "0"},
        Row{"floordiv(8*i + j, 8)", "i + floordiv(j, 8)"}, Row{"mod(8*i + j, 8)", "mod(j, 8)"},
        Row{"floordiv(9*i, 8)", "i + floordiv(i, 8)"}, Row{"mod(9*i, 8)", "mod(i, 8)"},
        Row{"floordiv(i + 9, 8)", "floordiv(i + 1, 8) + 1"},
        Row{"floordiv(i - 1, 8)", "floordiv(i + 7, 8) - 1"}, Row{"mod(i - 1, 8)", "mod(i + 7, 8)"},
        Row{"floordiv(4*i + 3, 8)", "floordiv(i, 2)"}, Row{"mod(4*i + 3, 8)", "mod(i, 2)*4 + 3"},
        Row{"floordiv(4*i + 5, 8)", "floordiv(i + 1, 2)"},
        Row{"floordiv(-i*8 + j, 8)", "-i + floordiv(j, 8)"},
        Row{"floordiv(floordiv(a, 3), 5)", "floordiv(a, 15)"},
        Row{"floordiv(floordiv(a, 3) + 2, 5)", "floordiv(a + 6, 15)"},
        Row{"floordiv(floordiv(a, s0), s1)", "floordiv(a, s0*s1)"},
        Row{"floordiv(floordiv(a, 3)*2, 5)", "floordiv(floordiv(a, 3)*2, 5)"},
        Row{"mod(mod(a, 32), 8)", "mod(a, 8)"}, Row{"mod(mod(a, 8), 32)", "mod(mod(a, 8), 32)"},
        Row{"mod(4*mod(a, 8) + b, 16)", "mod(a*4 + b, 16)"},
        Row{"mod(mod(a, s0*s1)*s2, s1)", "mod(a*s2, s1)"},
        Row{"floordiv(i*s0 + j, s0)", "i + floordiv(j, s0)"},
        Row{"mod(i*s0 + j, s0)", "mod(j, s0)"},
        Row{"floordiv(2*i*s0 + j*2, 2*s0)", "i + floordiv(j, s0)"},
        Row{"floordiv(i*s0, s0*s1)", "floordiv(i*s0, s0*s1)"},  // s0 might be negative
        Row{"floordiv(i*s0 + i + j, s0 + 1)", "i + floordiv(j, s0 + 1)"},
        Row{"mod(i*s0 + i + j, s0 + 1)", "mod(j, s0 + 1)"},
        Row{"floordiv(s0, s0 + 1)", "floordiv(s0, s0 + 1)"},
        Row{"floordiv(s0*s0 - 1, s0 - 1)", "s0 + 1"}, Row{"floordiv(5, 4*s0)", "floordiv(1, s0)"},
        Row{"mod(5, 4*s0)", "mod(1, s0)*4 + 1"}, Row{"floordiv(4, 0)", "floordiv(4, 0)"},
        Row{"mod(s0, -3)", "mod(s0, -3)"}, Row{"min(b, a)", "min(a, b)"},
        Row{"max(1, s0)", "max(s0, 1)"}, Row{"min(a, a)", "a"}, Row{"min(a, a + 1)", "a"},
        Row{"max(a, max(3, a + 1))", "max(a + 1, 3)"},
        Row{"max(max(c, 2), max(5, a))", "max(a, max(c, 5))"},
        Row{"min(c, min(b, a))", "min(a, min(b, c))"},
        Row{"min(min(a, b), c)", "min(a, min(b, c))"},
        Row{"min(max(a, b), c)", "min(c, max(a, b))"}));

TEST(SymExpr, ceiling_divisions_are_recognized_as_equal) {
  EXPECT_EQ(parse("floordiv(s0 + 7, 8)"), parse("floordiv(s0 - 1, 8) + 1"));
}

TEST(SymExpr, divide_exactly) {
  EXPECT_EQ(parse("a*a - b*b").divide_exactly(parse("a - b")), parse("a + b"));
  EXPECT_EQ(parse("6*a*b + 9*b").divide_exactly(parse("3*b")), parse("2*a + 3"));
  EXPECT_EQ(parse("6").divide_exactly(parse("-3")), parse("-2"));
  EXPECT_EQ(parse("0").divide_exactly(parse("a")), parse("0"));
  EXPECT_EQ(parse("a*floordiv(b, 2)").divide_exactly(parse("floordiv(b, 2)")), parse("a"));
  EXPECT_EQ(parse("a*a + b").divide_exactly(parse("a")), std::nullopt);
  EXPECT_EQ(parse("3*a").divide_exactly(2), std::nullopt);
  EXPECT_EQ(parse("a").divide_exactly(0), std::nullopt);
  EXPECT_EQ(parse("1").divide_exactly(parse("a")), std::nullopt);
}

// ---- Questions ----

TEST(SymExpr, tells_what_it_is) {
  EXPECT_TRUE(parse("3").is_constant());
  EXPECT_FALSE(parse("a").is_constant());
  EXPECT_EQ(parse("a").as_constant(), std::nullopt);
  EXPECT_EQ(parse("a").as_symbol(), "a");
  EXPECT_EQ(parse("a + 1").as_symbol(), std::nullopt);
  EXPECT_EQ(parse("2*a").as_symbol(), std::nullopt);
  EXPECT_EQ(parse("a*a").as_symbol(), std::nullopt);
  EXPECT_EQ(parse("7").as_symbol(), std::nullopt);
}

TEST(SymExpr, finds_its_symbols) {
  const SymExpr e = parse("s1*floordiv(b + c, s0) + b - max(d, 3)");
  EXPECT_THAT(e.symbols(), ElementsAre("b", "c", "d", "s0", "s1"));
  EXPECT_TRUE(e.contains("s0"));
  EXPECT_TRUE(e.contains("d"));
  EXPECT_FALSE(e.contains("s"));
  EXPECT_THAT(parse("4").symbols(), ElementsAre());
}

TEST(SymExpr, linear_in) {
  const auto linear = parse("a*b*2 + a - b + floordiv(c, 2)").linear_in("a");
  ASSERT_TRUE(linear);
  EXPECT_EQ(linear->coefficient.str(), "b*2 + 1");
  EXPECT_EQ(linear->rest.str(), "-b + floordiv(c, 2)");
  EXPECT_EQ(parse("b").linear_in("a")->coefficient, SymExpr(0));
  EXPECT_EQ(parse("5").linear_in("a")->rest, SymExpr(5));
  EXPECT_FALSE(parse("a*a").linear_in("a"));
  EXPECT_FALSE(parse("a + mod(a, 2)").linear_in("a"));
  EXPECT_FALSE(parse("a*mod(a, 2)").linear_in("a"));
  EXPECT_FALSE(parse("min(a, b)").linear_in("a"));
}

TEST(SymExpr, functions_come_outermost_first) {
  const SymExpr e = parse("mod(a, 8) + max(floordiv(b + mod(a, 8), s0), 2)");
  const std::vector<SymExpr::Function> functions = e.functions();
  ASSERT_EQ(functions.size(), 2u);
  EXPECT_EQ(functions[0].kind, AtomKind::kFloorDiv);
  EXPECT_EQ(functions[0].numerator.str(), "b + mod(a, 8)");
  EXPECT_EQ(functions[0].divisor.str(), "s0");
  EXPECT_EQ(functions[1].kind, AtomKind::kMod);
}

TEST(SymExpr, substitutes_and_normalizes_again) {
  const SymExpr e = parse("floordiv(i*8 + j, s0) + min(j, 4)");
  const auto replaced = e.substitute([](std::string_view name) -> std::optional<SymExpr> {
    if (name == "s0") return SymExpr(8);
    if (name == "j") return SymExpr::symbol("k") * 8;
    return std::nullopt;
  });
  EXPECT_EQ(replaced.str(), "i + k + min(k*8, 4)");
  EXPECT_EQ(e.substitute([](std::string_view) { return std::nullopt; }), e);
}

TEST(SymExpr, has_no_value_where_a_divisor_is_not_positive) {
  const SymExpr s0 = SymExpr::symbol("s0"), s1 = SymExpr::symbol("s1");
  const SymExpr quotient = SymExpr::floordiv(s0, s0 - s1);
  const auto of = [](int64_t subtracted) {
    return [=](std::string_view name) -> int64_t { return name == "s0" ? 8 : subtracted; };
  };
  EXPECT_EQ(quotient.try_evaluate(of(4)), 2);
  EXPECT_EQ(quotient.try_evaluate(of(8)), std::nullopt);
}

TEST(SymExpr, evaluates_with_floor_semantics) {
  const SymExpr e = parse("floordiv(a, b)*100 + mod(a, b)*10 + min(a, b) - max(a, 0)");
  EXPECT_EQ(evaluate(e, {{"a", -7}, {"b", 3}}), -300 + 20 - 7);
  EXPECT_THROW(evaluate(e, {{"a", 1}, {"b", 0}}), Error);
  EXPECT_THROW(evaluate(e, {{"a", 1}, {"b", -3}}), Error);
  EXPECT_EQ(message_of([] { parse("mod(1, 0)").evaluate([](auto) { return 0; }); }),
            "mod: divisor is 0, expected a positive one");
}

TEST(SymExpr, visits_bottom_up) {
  SymExpr::Visitor<std::string> visitor;
  visitor.constant = [](int64_t value) { return std::to_string(value); };
  visitor.symbol = [](std::string_view name) { return std::string(name); };
  const auto binary = [](const char* name) {
    return [name](const std::string& a, const std::string& b) {
      return "(" + a + " " + name + " " + b + ")";
    };
  };
  visitor.add = binary("+");
  visitor.multiply = binary("*");
  visitor.floordiv = binary("//");
  visitor.mod = binary("%");
  visitor.min = binary("min");
  visitor.max = binary("max");
  EXPECT_EQ(parse("2*a*floordiv(b, 3) - mod(c, a) + 5").visit(visitor),
            "((((2 * a) * (b // 3)) + (-1 * (c % a))) + 5)");
  EXPECT_EQ(parse("min(a, max(b, 1))").visit(visitor), "(a min (b max 1))");
  EXPECT_EQ(parse("7").visit(visitor), "7");
}

TEST(SymExpr, order_is_total) {
  std::vector<SymExpr> all = {parse("3"),        parse("-1"),  parse("a"),       parse("2*a"),
                              parse("a + 1"),    parse("b"),   parse("a*b"),     parse("mod(a, 2)"),
                              parse("min(a,b)"), parse("a*a"), parse("a*a + a"), parse("0")};
  std::sort(all.begin(), all.end());
  for (size_t i = 0; i < all.size(); ++i)
    for (size_t j = 0; j < all.size(); ++j) EXPECT_EQ(all[i] <=> all[j], i <=> j) << i << " " << j;
}

// ---- Parsing ----

TEST(SymExprParse, follows_the_precedence) {
  EXPECT_EQ(parse("2 + 3*4 - -5").as_constant(), 19);
  EXPECT_EQ(parse("-(2 + 3)*4").as_constant(), -20);
  EXPECT_EQ(parse("--2").as_constant(), 2);
  EXPECT_EQ(parse("-s0*-2"), parse("2*s0"));
  EXPECT_EQ(parse(" ( s0 ) // comment"), parse("s0"));
}

TEST(SymExprParse, errors_name_the_column) {
  EXPECT_EQ(message_of([] { parse("s0 +"); }),
            "1:5: expected a symbolic integer, found end of text");
  EXPECT_EQ(message_of([] { parse("s0 s1"); }),
            "1:4: expected the end of the expression, found 's1'");
  EXPECT_EQ(message_of([] { parse("1 + div(a, b)"); }),
            "1:5: unknown function 'div', expected floordiv, mod, min or max");
  EXPECT_EQ(message_of([] { parse("mod(a b)"); }), "1:7: expected ',', found 'b'");
  EXPECT_EQ(message_of([] { parse("(a"); }), "1:3: expected ')', found end of text");
  EXPECT_EQ(message_of([] { parse("1.5"); }), "1:1: expected a symbolic integer, found '1.5'");
  EXPECT_THROW(parse(""), Error);
  EXPECT_THROW(parse("9223372036854775808"), Error);
}

TEST(SymExprParse, deep_nesting_is_an_error_and_no_crash) {
  EXPECT_THAT(message_of([] { parse(std::string(100000, '(')); }), HasSubstr("too deeply"));
  EXPECT_THAT(message_of([] { parse(std::string(100000, '-') + "a"); }), HasSubstr("too deeply"));
}

TEST(SymExprParse, stops_where_the_expression_ends) {
  Lexer lexer("[s0*2, -1]");
  lexer.expect("[");
  EXPECT_EQ(SymExpr::parse(lexer), parse("s0*2"));
  lexer.expect(",");
  EXPECT_EQ(SymExpr::parse(lexer), SymExpr(-1));
  lexer.expect("]");
}

TEST(Product, multiplies) {
  EXPECT_EQ(product({}), SymExpr(1));
  EXPECT_EQ(product({2, SymExpr::symbol("a"), 3}).str(), "a*6");
}

}  // namespace
}  // namespace mlcc
