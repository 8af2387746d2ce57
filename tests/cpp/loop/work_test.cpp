#include "loop/work.h"

#include <gtest/gtest.h>

#include <array>

#include "loop/text.h"

namespace mlcc::loop {
namespace {

Work work_of_text(std::string_view text, std::span<const int64_t> sizes) {
  Arena arena;
  return work_of(parse_kernel(arena, text), sizes);
}

TEST(Work, CountsFloatsInLoops) {
  const Work work = work_of_text(R"(
kernel @k(%n: i64; %x: in f32[%n, 8], %y: out f32[%n]) {
  for %i in 0..%n parallel {
    reduce %j in 0..8 (%a: f32 = 0.0) {
      let %e: f32 = exp(%x[%i, 7 - %j]) * 2.0
      yield %a + %e
    } -> %s
    store %y[%i] = %s + 1.0
  }
})",
                                 std::array<int64_t, 1>{5});
  EXPECT_EQ(work.flops, 5 * (8 * 3 + 1));
  EXPECT_EQ(work.bytes, 4 * (5 * 8 + 5));
}

TEST(Work, KnowsWhereTilesBegin) {
  const Work work = work_of_text(R"(
kernel @k(%n: i64; %x: inout f64[%n]) {
  for %t in 0..floordiv(%n, 4) {
    let %first: i64 = %t * 4
    for %i in %first..min(%first + 4, %n) {
      if %x[%i] > 0.0 {
        store %x[%i] = sqrt(%x[%i])
      } else {
        store %x[%i] = %x[%i] * 2.0 + 1.0
      }
    }
  }
})",
                                 std::array<int64_t, 1>{8});
  EXPECT_EQ(work.flops, 2 * 4 * 2);
  EXPECT_EQ(work.bytes, 2 * 8 * 8);
}

TEST(Work, DoesNotKnowWhatDataTells) {
  const Work work = work_of_text(R"(
kernel @k(%n: in i64[1], %x: in f32[3], %y: out f32[3]) {
  for %i in 0..%n[0] {
    store %y[%i] = %x[%i] + 1.0
  }
})",
                                 {});
  EXPECT_FALSE(work.flops.has_value());
  EXPECT_EQ(work.bytes, 8 + 2 * 12);
}

}  // namespace
}  // namespace mlcc::loop
