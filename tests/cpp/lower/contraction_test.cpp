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
  const auto one_row = [](int64_t last_level_bytes) {
    return text_of_kernel(product("1", 32),
                          {.last_level_bytes = last_level_bytes, .prefetches_pages = true});
  };
  EXPECT_TRUE(contains(one_row(8 * kMiB), "soon"));
  EXPECT_FALSE(contains(one_row(4 * kMiB), "ahead"));
  EXPECT_TRUE(contains(text_of_kernel(product("2", 32), {.last_level_bytes = 4 * kMiB}), "soon"));
  EXPECT_TRUE(contains(text_of_kernel(product("6", 16), {.vector_bits = 256}), "soon"));
  EXPECT_FALSE(contains(text_of_kernel(product("2", 32), {.second_level_bytes = 4 * kMiB,
                                                          .last_level_bytes = 8 * kMiB}),
                        "ahead"));
}

// Eight of them, a KB at a time, and nothing asked for.
TEST(ContractionLowering, one_row_reads_panels_side_by_side_where_prefetchers_stop_at_pages) {
  const std::string text = text_of_kernel(product("1", 32), {.last_level_bytes = 8 * kMiB});
  EXPECT_TRUE(contains(text, "depth(8)")) << text;
  EXPECT_TRUE(contains(text, "stack f32[256]")) << text;
  EXPECT_FALSE(contains(text, "ahead")) << text;
  const std::string near = text_of_kernel(product("1", 32), {.second_level_bytes = 4 * kMiB});
  EXPECT_FALSE(contains(near, "depth(8)")) << near;
}

// What a kernel chooses for so many rows: its lines up to the choice, as a kernel of their own.
int64_t height_of(const std::string& text, int64_t most, int64_t rows) {
  const size_t begin = text.find("let ");
  const size_t last = text.find(", " + std::to_string(most) + ", ", begin);
  const size_t end = text.find('\n', last);
  const size_t name = text.rfind("let ", last) + 4;
  const std::string chosen = text.substr(name, text.find(':', name) - name);
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(
      arena, "kernel @height(%s0: i64; %y: out i64[1]) {\n" + text.substr(begin, end - begin) +
                 "\n store %y[0] = " + chosen + "\n}");
  int64_t height = 0;
  const std::vector<void*> buffers = {&height};
  EXPECT_EQ(loop::interpret(kernel, std::vector<int64_t>{rows}, buffers), 0);
  return height;
}

TEST(ContractionLowering, kernels_choose_the_height_that_costs_least) {
  const std::string wide = text_of_kernel(product("s0", 32), {.vector_bits = 512});
  for (int64_t rows = 1; rows <= 12; ++rows) EXPECT_EQ(height_of(wide, 12, rows), rows);
  EXPECT_EQ(height_of(wide, 12, 14), 7);
  EXPECT_EQ(height_of(wide, 12, 18), 9);
  EXPECT_EQ(height_of(wide, 12, 22), 11);
  EXPECT_EQ(height_of(wide, 12, 25), 7);  // 9 and 5 are for few rows only
  EXPECT_EQ(height_of(wide, 12, 100), 10);
  EXPECT_EQ(height_of(wide, 12, 504), 12);  // as 8 and 7 do, it computes none twice
  // With 16 registers a tile of 4 rows, which computes none of 512 twice, makes more loads than one
  // of 6.
  const std::string narrow = text_of_kernel(product("s0", 16), {.vector_bits = 256});
  for (int64_t rows = 1; rows <= 6; ++rows) EXPECT_EQ(height_of(narrow, 6, rows), rows);
  EXPECT_EQ(height_of(narrow, 6, 7), 4);
  EXPECT_EQ(height_of(narrow, 6, 25), 5);
  EXPECT_EQ(height_of(narrow, 6, 512), 6);
}

// Up to two tiles ask for their own panel and more for the next one, which the kernel finds out:
// where sums are short its code is the same whether the call that was traced had few or many.
TEST(ContractionLowering, kernels_ask_ahead_by_their_rows) {
  const auto text_of = [](const std::string& hint) {
    std::string graph = product("s0", 32);
    graph.replace(graph.find("512)"), 3, hint);
    return text_of_kernel(graph);
  };
  const std::string text = text_of("512");
  EXPECT_EQ(text, text_of("3"));
  const auto asks_of = [&](const std::string& tile, size_t from) {
    const size_t at = text.find(tile, from);
    EXPECT_NE(at, std::string::npos);
    const std::string line = text.substr(at, text.find('\n', at) - at);
    return contains(line, "soon") ? "own" : contains(line, "ahead") ? "next" : "nothing";
  };
  const size_t are_few = text.find("if %s0 <= 24");
  const size_t are_many = text.find("else", are_few);
  EXPECT_STREQ(asks_of("tile(12, 32)", are_few), "own");
  EXPECT_STREQ(asks_of("tile(12, 32)", are_many), "next");
  EXPECT_STREQ(asks_of("tile(11, 32)", 0), "own");  // for few rows only
  EXPECT_STREQ(asks_of("tile(4, 32)", 0), "own");
}

}  // namespace
}  // namespace mlcc::lower
