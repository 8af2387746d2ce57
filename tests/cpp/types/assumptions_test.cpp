#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

#include "support/error.h"
#include "types/symbolic.h"

namespace mlcc {
namespace {

using ::testing::ElementsAre;

SymExpr parse(std::string_view text) { return SymExpr::parse(text); }

class AssumptionsTest : public ::testing::Test {
 protected:
  AssumptionsTest() {
    facts_.set_range("s0", {0, kUnboundedHigh});
    facts_.set_range("n", {2, 100});
    facts_.set_range("m", {1, kUnboundedHigh});
    facts_.set_divisor("m", 8);
    facts_.set_index("i", parse("s0"));
    facts_.set_index("j", 512);
    facts_.set_index("k", parse("s1"));
  }

  std::string simplify(std::string_view text) const { return facts_.simplify(parse(text)).str(); }
  bool is_less(std::string_view a, std::string_view b) const {
    return facts_.is_less(parse(a), parse(b));
  }
  SymRange range(std::string_view text) const { return facts_.range(parse(text)); }

  Assumptions facts_;
};

TEST_F(AssumptionsTest, ranges) {
  EXPECT_EQ(range("7"), (SymRange{7, 7}));
  EXPECT_EQ(range("j"), (SymRange{0, 511}));
  EXPECT_EQ(range("i"), (SymRange{0, kUnboundedHigh}));
  EXPECT_EQ(range("unknown"), (SymRange{kUnboundedLow, kUnboundedHigh}));
  EXPECT_EQ(range("n*n"), (SymRange{4, 10000}));
  EXPECT_EQ(range("n - 2*j"), (SymRange{2 - 1022, 100}));
  EXPECT_EQ(range("floordiv(j, n)"), (SymRange{0, 255}));
  EXPECT_EQ(range("mod(unknown, n)"), (SymRange{0, 99}));
  EXPECT_EQ(range("mod(j, 1000)"), (SymRange{0, 511}));
  EXPECT_EQ(range("min(unknown, 3)"), (SymRange{kUnboundedLow, 3}));
  EXPECT_EQ(range("max(unknown, 3)"), (SymRange{3, kUnboundedHigh}));
  EXPECT_EQ(range("m"), (SymRange{8, kUnboundedHigh}));  // the first multiple of 8
  EXPECT_EQ(range("unknown*unknown"), (SymRange{0, kUnboundedHigh}));
}

TEST_F(AssumptionsTest, ranges_see_symbolic_extents) {
  EXPECT_EQ(range("s0 - i"), (SymRange{1, kUnboundedHigh}));
  EXPECT_EQ(range("i - s0"), (SymRange{kUnboundedLow, -1}));
  EXPECT_EQ(range("s0 - i + k - s1"), (SymRange{kUnboundedLow, kUnboundedHigh}));
  EXPECT_EQ(range("floordiv(i, s0)"), (SymRange{0, 0}));
}

TEST_F(AssumptionsTest, ranges_saturate) {
  Assumptions facts;
  facts.set_range("a", {INT64_MAX - 1, INT64_MAX - 1});
  facts.set_range("b", {INT64_MIN + 1, INT64_MAX - 1});
  const auto range = [&](std::string_view text) { return facts.range(parse(text)); };
  EXPECT_EQ(range("a*2").high, kUnboundedHigh);
  EXPECT_GT(range("a*2").low, INT64_MAX - 2);
  EXPECT_EQ(range("b*b*b"), (SymRange{kUnboundedLow, kUnboundedHigh}));
  EXPECT_EQ(range("b + b").low, kUnboundedLow);
  EXPECT_EQ(range("-a*3").low, kUnboundedLow);
  EXPECT_EQ(facts.range(SymExpr(INT64_MIN)), (SymRange{INT64_MIN, INT64_MIN}));
  EXPECT_FALSE(facts.is_less(parse("b"), SymExpr(INT64_MIN)));
  EXPECT_FALSE(facts.is_less(SymExpr::symbol("x") * INT64_MAX, SymExpr::symbol("x") * INT64_MIN));
}

TEST_F(AssumptionsTest, later_facts_replace_earlier_ones_of_the_same_kind) {
  facts_.set_range("n", {5, 6});
  EXPECT_EQ(range("n"), (SymRange{5, 6}));
  facts_.set_index("j", 3);
  EXPECT_EQ(range("j"), (SymRange{0, 2}));
  facts_.set_range("j", {1, 100});
  EXPECT_EQ(range("j"), (SymRange{1, 2}));
}

TEST_F(AssumptionsTest, circular_extents_are_bugs) {
  EXPECT_THROW(facts_.set_index("i", parse("i + 1")), InternalError);
  facts_.set_index("a", parse("b"));
  facts_.set_index("b", parse("c"));
  EXPECT_THROW(facts_.set_index("c", parse("a")), InternalError);
  EXPECT_THROW(facts_.set_divisor("a", 0), InternalError);
  EXPECT_THROW(facts_.set_range("a", {1, 0}), InternalError);
}

TEST_F(AssumptionsTest, simplifies_by_ranges) {
  EXPECT_EQ(simplify("floordiv(i*512 + j, 512)"), "i");
  EXPECT_EQ(simplify("mod(i*512 + j, 512)"), "j");
  EXPECT_EQ(simplify("mod(j - 512, 512)"), "j");
  EXPECT_EQ(simplify("floordiv(j + 512, 512)"), "1");
  EXPECT_EQ(simplify("floordiv(-1 - j, 512)"), "-1");
  EXPECT_EQ(simplify("mod(-1 - j, 512)"), "-j + 511");
  EXPECT_EQ(simplify("max(n, 1)"), "n");
  EXPECT_EQ(simplify("max(s0, 1)"), "max(s0, 1)");
  EXPECT_EQ(simplify("min(j, min(s0, 600))"), "min(j, s0)");
  EXPECT_EQ(simplify("min(i, s0 - 1) + max(i, s0)"), "i + s0");
  EXPECT_EQ(simplify("floordiv(j, 500)"), "floordiv(j, 500)");
}

TEST_F(AssumptionsTest, simplifies_tiled_indices) {
  EXPECT_EQ(simplify("floordiv(i*512 + j, 1024)"), "floordiv(i, 2)");
  EXPECT_EQ(simplify("mod(i*512 + j, 1024)"), "j + mod(i, 2)*512");
  EXPECT_EQ(simplify("floordiv(i*512 + j, 64)"), "i*8 + floordiv(j, 64)");
  EXPECT_EQ(simplify("floordiv(j, 64)*64 + mod(j, 64)"), "j");
  EXPECT_EQ(simplify("floordiv(mod(i, 32), 8)*8 + mod(i, 8)"), "mod(i, 32)");
  EXPECT_EQ(simplify("s1*(floordiv(i, s1)*3) + mod(i, s1)*3"), "i*3");
}

TEST_F(AssumptionsTest, simplifies_symbolic_divisors) {
  EXPECT_EQ(simplify("floordiv(i*s1 + k, s1)"), "i");
  EXPECT_EQ(simplify("mod(i*s1 + k, s1)"), "k");
  EXPECT_EQ(simplify("mod(s1 - 1 - k, s1)"), "-k + s1 - 1");
  EXPECT_EQ(simplify("floordiv(i*s1 + k, s0*s1)"), "0");
  EXPECT_EQ(simplify("floordiv(j*s1 + k, s0*s1)"), "floordiv(j, s0)");
  EXPECT_EQ(simplify("mod(j*s1 + k, s0*s1)"), "s1*mod(j, s0) + k");
  EXPECT_EQ(simplify("floordiv(i*s1*512 + k*512 + j, s1*512)"), "i");
  EXPECT_EQ(simplify("mod(floordiv(i*s1*512 + k*512 + j, 512), s1)"), "k");
  EXPECT_EQ(simplify("floordiv(k, s0)"), "floordiv(k, s0)");
  EXPECT_EQ(simplify("floordiv(j*m, m*u)"), "floordiv(j, u)");
  // u and v may both be negative.
  EXPECT_EQ(simplify("floordiv(j*u, u*v)"), "floordiv(j*u, u*v)");
  EXPECT_EQ(simplify("mod(j*u, u*v)"), "mod(j*u, u*v)");
}

TEST_F(AssumptionsTest, simplifies_by_divisors) {
  EXPECT_EQ(simplify("mod(m, 8)"), "0");
  EXPECT_EQ(simplify("floordiv(m, 8)*8"), "m");
  EXPECT_EQ(simplify("mod(m*i + j, 8)"), "mod(j, 8)");
  EXPECT_EQ(simplify("floordiv(m*i + j, 8)"), "i*floordiv(m, 8) + floordiv(j, 8)");
  EXPECT_EQ(simplify("floordiv(m, 8)"), "floordiv(m, 8)");
  EXPECT_EQ(simplify("mod(floordiv(m, 2), 4)"), "0");
}

TEST_F(AssumptionsTest, an_index_of_extent_one_is_zero) {
  facts_.set_index("one", 1);
  facts_.set_range("five", {5, 5});
  EXPECT_EQ(simplify("one*s0 + five"), "5");
}

TEST_F(AssumptionsTest, simplify_gives_up_on_overflow) {
  const SymExpr e = SymExpr::floordiv(SymExpr::symbol("i") * INT64_MAX + 5, parse("n"));
  EXPECT_EQ(facts_.simplify(facts_.simplify(e)), facts_.simplify(e));
}

TEST_F(AssumptionsTest, proves_that_accesses_stay_inside) {
  EXPECT_TRUE(is_less("i*512 + j", "s0*512"));
  EXPECT_FALSE(is_less("i*512 + j", "s0*512 - 1"));
  EXPECT_FALSE(is_less("i*512 + j + 1", "s0*512"));
  EXPECT_TRUE(is_less("i*s1 + k", "s0*s1"));
  EXPECT_TRUE(is_less("i*s1*512 + k*512 + j", "s0*s1*512"));
  EXPECT_TRUE(is_less("(s0 - 1 - i)*512 + 511 - j", "s0*512"));  // flipped
  EXPECT_FALSE(is_less("i", "s1"));
  EXPECT_FALSE(is_less("i", "i"));
  EXPECT_TRUE(is_less("floordiv(i, 2)*2", "s0"));
  EXPECT_TRUE(is_less("mod(i, n)", "n"));
}

TEST_F(AssumptionsTest, proves_tiles_with_tails) {
  facts_.set_index("o", parse("floordiv(s0, 8)"));
  facts_.set_index("oo", parse("floordiv(s0 + 7, 8)"));
  facts_.set_index("l", 8);
  facts_.set_index("t", parse("min(8, s0 - oo*8)"));
  EXPECT_TRUE(is_less("o*8 + l", "s0"));
  EXPECT_TRUE(is_less("oo*8", "s0"));
  EXPECT_FALSE(is_less("oo*8 + l", "s0"));
  EXPECT_TRUE(is_less("oo*8 + t", "s0"));
  EXPECT_TRUE(is_less("t", "8"));
}

TEST_F(AssumptionsTest, proves_triangular_loops) {
  facts_.set_index("c", parse("i + 1"));
  EXPECT_TRUE(is_less("c", "s0"));
  EXPECT_TRUE(facts_.is_nonnegative(parse("i - c")));
  EXPECT_FALSE(facts_.is_positive(parse("i - c")));
  EXPECT_TRUE(is_less("c*s1 + k", "s0*s1"));
  // i must not be replaced by 0 while c <= i is needed: false for i = c = 7.
  EXPECT_FALSE(
      facts_.is_nonnegative(parse("max(i - c, -5)*max(i - c, -7) - max(-c, -5)*max(-c, -7)")));
}

TEST_F(AssumptionsTest, proves_signs) {
  EXPECT_TRUE(facts_.is_nonnegative(parse("s0")));
  EXPECT_FALSE(facts_.is_positive(parse("s0")));
  EXPECT_TRUE(facts_.is_positive(parse("s0 - i")));
  EXPECT_TRUE(facts_.is_positive(parse("n*m")));
  EXPECT_TRUE(facts_.is_nonnegative(parse("s0*n - s0")));
  EXPECT_FALSE(facts_.is_nonnegative(parse("unknown")));
  EXPECT_TRUE(facts_.is_nonnegative(parse("s0 - 8*floordiv(s0, 8)")));
  EXPECT_TRUE(facts_.is_nonnegative(parse("8*floordiv(s0 + 7, 8) - s0")));
}

TEST_F(AssumptionsTest, an_index_elsewhere_proves_nothing) {
  // i < s0 holds inside the loop alone; the size itself may be 0.
  EXPECT_FALSE(facts_.is_less(0, parse("s0")));
  EXPECT_TRUE(facts_.is_less(0, parse("s0 + i")));
}

TEST_F(AssumptionsTest, proves_divisibility) {
  const auto divides = [&](std::string_view d, std::string_view e) {
    return facts_.divides(parse(d), parse(e));
  };
  EXPECT_TRUE(divides("8", "m"));
  EXPECT_TRUE(divides("16", "m*2*i + 32"));
  EXPECT_FALSE(divides("16", "m"));
  EXPECT_TRUE(divides("-4", "m"));
  EXPECT_FALSE(divides("0", "m"));
  EXPECT_TRUE(divides("3", "0"));
  EXPECT_TRUE(divides("s0", "s0*i + s0*3"));
  EXPECT_TRUE(divides("8*s0", "s0*m"));
  EXPECT_FALSE(divides("8*s0", "s0*n"));
  EXPECT_TRUE(divides("s0 + 1", "s0*i + i"));
  EXPECT_TRUE(divides("4", "floordiv(m, 2)"));
  EXPECT_TRUE(divides("4", "mod(m, 12)"));
  EXPECT_TRUE(divides("4", "min(m, 4*i)"));
}

TEST_F(AssumptionsTest, proves_equality) {
  const auto is_equal = [&](std::string_view a, std::string_view b) {
    return facts_.is_equal(parse(a), parse(b));
  };
  EXPECT_TRUE(is_equal("floordiv(i*512 + j, 512)*512 + j", "i*512 + j"));
  EXPECT_TRUE(is_equal("max(n, 1)*s0", "s0*n"));
  EXPECT_FALSE(is_equal("max(s0, 1)", "s0"));
}

TEST_F(AssumptionsTest, deep_expressions_are_given_up_in_time) {
  SymExpr e = SymExpr::symbol("s0");
  for (int n = 0; n < 8; ++n) {
    const std::string name = std::to_string(n);
    const SymExpr right = SymExpr::max(SymExpr::symbol("b" + name), SymExpr::floordiv(e, 3));
    e = SymExpr::min(e + SymExpr::symbol("a" + name), right);
  }
  EXPECT_FALSE(facts_.is_nonnegative(e));
  EXPECT_EQ(facts_.simplify(e), e);
}

TEST(ContiguousStrides, are_row_major_and_count_empty_sizes_as_one) {
  EXPECT_THAT(contiguous_strides({2, 3, 4}), ElementsAre(12, 4, 1));
  EXPECT_THAT(contiguous_strides({2, 0, 4}), ElementsAre(4, 4, 1));
  EXPECT_THAT(contiguous_strides({}), ElementsAre());
  const SymExpr s = SymExpr::symbol("s0");
  EXPECT_THAT(contiguous_strides({s, 512}), ElementsAre(512, 1));
  EXPECT_THAT(contiguous_strides({2, s, 4}), ElementsAre(SymExpr::max(s, 1) * 4, 4, 1));
  Assumptions facts;
  facts.set_range("s0", {1, kUnboundedHigh});
  EXPECT_THAT(contiguous_strides({2, s, 4}, facts), ElementsAre(s * 4, 4, 1));
}

}  // namespace
}  // namespace mlcc
