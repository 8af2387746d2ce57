#include "lower/axes/nest_axes.h"

#include <gtest/gtest.h>

namespace mlcc::lower {
namespace {

SymExpr e(std::string_view text) { return SymExpr::parse(text); }

TEST(NestAxes, MergesAxesThatEveryAccessWalksAsOne) {
  const NestAxes axes({8, 12}, {false, false}, {e("d0*12 + d1"), e("3*d0*12 + 3*d1 + 5")}, {});
  ASSERT_EQ(axes.axes().size(), 1u);
  EXPECT_EQ(axes.axes()[0].extent, SymExpr(96));
  EXPECT_EQ(axes.map(e("d0*12 + d1")).str(), axes.axes()[0].name);
}

TEST(NestAxes, KeepsAxesApartThatABroadcastReadsDifferently) {
  const NestAxes axes({8, 12}, {false, false}, {e("d0*12 + d1"), e("d1")}, {});
  EXPECT_EQ(axes.axes().size(), 2u);
}

TEST(NestAxes, NeverMergesAReducedAxisWithAKeptOne) {
  const NestAxes axes({8, 12}, {false, true}, {e("d0*12 + d1")}, {});
  EXPECT_EQ(axes.axes().size(), 2u);
}

TEST(NestAxes, PutsReducedAxesInside) {
  const NestAxes axes({8, 12}, {true, false}, {e("d0*12 + d1"), e("d1")}, {});
  ASSERT_EQ(axes.axes().size(), 2u);
  EXPECT_FALSE(axes.axes()[0].reduced);
  EXPECT_EQ(axes.axes()[1].extent, SymExpr(8));
}

TEST(NestAxes, SplitsAnAxisThatAReshapeDivides) {
  // [6, 40] transposed and flattened: the store walks d0, the load walks its halves.
  const NestAxes axes({240}, {false}, {e("d0"), e("floordiv(d0, 6) + 40*mod(d0, 6)")}, {});
  ASSERT_EQ(axes.axes().size(), 2u);
  EXPECT_EQ(axes.axes()[0].extent, SymExpr(40));
  EXPECT_EQ(axes.axes()[1].extent, SymExpr(6));
  EXPECT_TRUE(axes.map(e("floordiv(d0, 6) + 40*mod(d0, 6)")).functions().empty());
}

TEST(NestAxes, SymbolicSizesMergeToo) {
  Assumptions facts;
  facts.set_range("s0", {1, 4096});
  const NestAxes axes({e("s0"), 16}, {false, false}, {e("d0*16 + d1")}, facts);
  ASSERT_EQ(axes.axes().size(), 1u);
  EXPECT_EQ(axes.axes()[0].extent, e("s0*16"));
}

TEST(NestAxes, DropsAxesOfOneElement) {
  const NestAxes axes({1, 7}, {false, false}, {e("d0*7 + d1")}, {});
  ASSERT_EQ(axes.axes().size(), 1u);
  EXPECT_EQ(axes.map(e("d0*7 + d1")).str(), "d1");
}

}  // namespace
}  // namespace mlcc::lower
