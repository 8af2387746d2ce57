#include "types/argument.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <limits>

namespace mlcc {
namespace {

using ::testing::ElementsAre;

std::string text(const Argument& argument) {
  return print_argument(argument, [](int index) { return "%" + std::to_string(index); });
}

TEST(Argument, every_kind_has_its_text) {
  EXPECT_EQ(text(Argument()), "none");
  EXPECT_EQ(text(ArgRef{3}), "%3");
  EXPECT_EQ(text(true), "true");
  EXPECT_EQ(text(false), "false");
  EXPECT_EQ(text(SymExpr(7)), "7");
  EXPECT_EQ(text(SymExpr::symbol("s0") * 2), "s0*2");
  EXPECT_EQ(text(std::string("a\"b")), "\"a\\\"b\"");
  EXPECT_EQ(text(ArgEnum{"layout", "strided"}), "layout(strided)");
  EXPECT_EQ(text(ArgEnum{"device", "cuda:0"}), "device(\"cuda:0\")");
  EXPECT_EQ(text(ArgEnum{"dtype", ""}), "dtype(\"\")");
  EXPECT_EQ(text(ArgList{}), "[]");
  EXPECT_EQ(text(ArgList{ArgRef{0}, ArgList{SymExpr(1), 0.5}, ArgNone{}}), "[%0, [1, 0.5], none]");
}

TEST(Argument, floats_never_look_like_integers) {
  const double inf = std::numeric_limits<double>::infinity();
  EXPECT_EQ(print_float(1.0), "1.0");
  EXPECT_EQ(print_float(-0.0), "-0.0");
  EXPECT_EQ(print_float(0.1), "0.1");
  EXPECT_EQ(print_float(1e300), "1e+300");
  EXPECT_EQ(print_float(static_cast<double>(0.1F)), "0.10000000149011612");
  EXPECT_EQ(print_float(inf), "inf");
  EXPECT_EQ(print_float(-inf), "-inf");
  EXPECT_EQ(print_float(-std::numeric_limits<double>::quiet_NaN()), "nan");
  for (const double value : {1e15, 123456789.0, 3e-310, 1.7976931348623157e308}) {
    EXPECT_EQ(std::strtod(print_float(value).c_str(), nullptr), value);
    EXPECT_NE(print_float(value).find_first_of(".e"), std::string::npos);
  }
}

TEST(Argument, references_are_found_at_any_depth) {
  Argument argument = ArgList{ArgRef{1}, true, ArgList{ArgRef{2}, ArgNone{}}, ArgRef{1}};
  std::vector<int> seen;
  for_each_reference(std::as_const(argument),
                     [&](const ArgRef& reference) { seen.push_back(reference.index); });
  EXPECT_THAT(seen, ElementsAre(1, 2, 1));
  for_each_reference(argument, [](ArgRef& reference) { reference.index += 10; });
  EXPECT_EQ(text(argument), "[%11, true, [%12, none], %11]");
}

TEST(Argument, equality_tells_kinds_apart) {
  EXPECT_EQ(Argument(SymExpr(1)), Argument(SymExpr(1)));
  EXPECT_NE(Argument(SymExpr(1)), Argument(1.0));
  EXPECT_NE(Argument(SymExpr(1)), Argument(true));
  EXPECT_NE(Argument(std::string("a")), Argument(ArgEnum{"a", "a"}));
  EXPECT_EQ(Argument(ArgList{ArgRef{1}}), Argument(ArgList{ArgRef{1}}));
  EXPECT_NE(Argument(ArgList{ArgRef{1}}), Argument(ArgList{ArgRef{2}}));
}

}  // namespace
}  // namespace mlcc
