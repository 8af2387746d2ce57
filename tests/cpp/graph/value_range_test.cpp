#include "graph/value_range.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"

namespace mlcc::graph {
namespace {

// Of the one output.
std::optional<SymRange> range_of(const std::string& header, const std::string& body) {
  const auto graph = parse_graph("graph @g(" + header + ") {\n" + body + "}\n");
  verify(*graph);
  return value_range(*graph->outputs()[0]);
}

constexpr SymRange kI8{-128, 127}, kU8{0, 255};

TEST(ValueRangeTest, OfInputsIsTheirDtypesOrWhatIsPromised) {
  EXPECT_EQ(range_of("%q: i8[4]", "  return %q\n"), kI8);
  EXPECT_EQ(range_of("%q: u8[4] static in ..15", "  return %q\n"), (SymRange{0, 15}));
  EXPECT_EQ(range_of("%q: i8[4] static in -8..7", "  return %q\n"), (SymRange{-8, 7}));
  EXPECT_EQ(range_of("%q: f32[4]", "  return %q\n"), std::nullopt);
}

TEST(ValueRangeTest, FollowsMasksAndShifts) {
  const std::string q = "%q: u8[4, 8]";
  EXPECT_EQ(range_of(q, "  %0: u8[] = full {value = 15}\n  %1: u8[4, 8] = and %q, %0\n"
                        "  return %1\n"),
            (SymRange{0, 15}));
  EXPECT_EQ(range_of(q, "  %0: u8[] = full {value = 4}\n  %1: u8[4, 8] = shift_right %q, %0\n"
                        "  return %1\n"),
            (SymRange{0, 15}));
  // A shift by what only a call knows may be by nothing.
  EXPECT_EQ(range_of(q + ", %s: u8[]", "  %1: u8[4, 8] = shift_right %q, %s\n  return %1\n"), kU8);
}

TEST(ValueRangeTest, LeavesADtypeOnlyAsAWhole) {
  const std::string q = "%q: i8[4] static in -8..7";
  EXPECT_EQ(range_of(q, "  %0: i8[] = full {value = 8}\n  %1: i8[4] = add %q, %0\n  return %1\n"),
            (SymRange{0, 15}));
  EXPECT_EQ(range_of(q, "  %0: i8[] = full {value = 125}\n  %1: i8[4] = add %q, %0\n"
                        "  return %1\n"),
            kI8);
  EXPECT_EQ(range_of(q, "  %0: u8[4] = cast %q\n  return %0\n"), kU8);
  EXPECT_EQ(range_of(q, "  %0: i32[4] = cast %q\n  %1: i32[4] = mul %0, %0\n  return %1\n"),
            (SymRange{-56, 64}));
}

TEST(ValueRangeTest, DoesNotKnowWhat64BitsWrap) {
  EXPECT_EQ(range_of("%q: u8[4]", "  %0: i64[4] = cast %q\n"
                                  "  %1: i64[] = full {value = 4611686018427387904}\n"
                                  "  %2: i64[4] = mul %0, %1\n  return %2\n"),
            kUnbounded);
}

TEST(ValueRangeTest, JoinsWhatStandsSideBySide) {
  EXPECT_EQ(range_of("%a: i8[4] static in 0..3, %b: i8[4] static in -1..1",
                     "  %0: i8[8] = cat %a, %b {dim = 0}\n  %1: i8[2, 4] = reshape %0\n"
                     "  return %1\n"),
            (SymRange{-1, 3}));
}

TEST(ValueRangeTest, OfClampedNumbersIsWithinTheLimits) {
  EXPECT_EQ(range_of("%x: i32[4]", "  %0: i32[] = full {value = -3}\n"
                                   "  %1: i32[] = full {value = 9}\n"
                                   "  %2: i32[4] = clamp %x, %0, %1\n  %3: i64[4] = cast %2\n"
                                   "  return %3\n"),
            (SymRange{-3, 9}));
}

TEST(ValueRangeTest, OfWhatFloatsBecomeIsNotKnown) {
  EXPECT_EQ(range_of("%x: f32[4]", "  %0: i8[4] = cast %x\n  return %0\n"), kI8);
}

}  // namespace
}  // namespace mlcc::graph
