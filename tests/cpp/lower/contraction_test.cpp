#include <gtest/gtest.h>

#include "one_kernel.h"

namespace mlcc::lower {
namespace {

constexpr int64_t kMiB = 1 << 20;

// Rows of x times 128 packed panels of 128 terms and `columns`: 2 MiB where these are 32.
std::string product(const std::string& rows, int64_t columns) {
  const std::string width = std::to_string(columns), all = std::to_string(128 * columns);
  return "graph @g(%x: f32[" + rows + ", 128], %w: f32[128, 128, " + width + "])" +
         (rows == "s0" ? " symbols(s0 hint 512)" : "") + " {\n  %0: f32[" + rows + ", " + all +
         "] = contract %x, %w {lhs = [d0, d2], reduced = [128], rhs = [floordiv(d1, " + width +
         "), d2, mod(d1, " + width + ")]}\n  return %0\n}\n";
}

TEST(ContractionLowering, one_row_asks_ahead_where_the_last_level_has_room_for_weights) {
  EXPECT_TRUE(contains(text_of_kernel(product("1", 32), {.last_level_bytes = 8 * kMiB}), "soon"));
  EXPECT_FALSE(contains(text_of_kernel(product("1", 32), {.last_level_bytes = 4 * kMiB}), "ahead"));
  EXPECT_TRUE(contains(text_of_kernel(product("2", 32), {.last_level_bytes = 4 * kMiB}), "soon"));
  EXPECT_TRUE(contains(text_of_kernel(product("6", 16), {.vector_bits = 256}), "soon"));
  EXPECT_FALSE(contains(text_of_kernel(product("2", 32), {.second_level_bytes = 4 * kMiB,
                                                          .last_level_bytes = 8 * kMiB}),
                        "ahead"));
}

// With 16 registers a tile of 4 rows, which computes none of 512 twice, makes more loads than one
// of 6.
TEST(ContractionLowering, kernels_choose_heights_by_their_loads) {
  EXPECT_TRUE(contains(text_of_kernel(product("s0", 16), {.vector_bits = 256}),
                       "8 * floordiv(%s0 + 5, 6) <= 6 * floordiv(%s0 + 3, 4)"));
  EXPECT_TRUE(contains(text_of_kernel(product("s0", 32), {.vector_bits = 512}),
                       "12 * floordiv(%s0 + 11, 12) <= 8 * floordiv(%s0 + 7, 8)"));
}

}  // namespace
}  // namespace mlcc::lower
