#include <gtest/gtest.h>

#include "one_kernel.h"
#include "schedule/machine.h"

namespace mlcc::lower {
namespace {

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++found;
  return found;
}

std::string gather(int64_t table_rows) {
  return "graph @g(%x: f32[" + std::to_string(table_rows) +
         ", 256], %i: i64[50]) {\n"
         "  %0: f32[50, 256] = take %x, %i {dim = 0, error = \"index\", wrap = true}\n"
         "  return %0\n}\n";
}

TEST(Requests, rows_of_a_large_table_are_asked_for_ahead) {
  const std::string kernel = text_of_kernel(gather(5000));
  EXPECT_TRUE(contains(kernel, "prefetch %b1[")) << kernel;
  EXPECT_TRUE(contains(kernel, "min(%0 + 8, 49)")) << kernel;
  EXPECT_FALSE(contains(text_of_kernel(gather(500)), "prefetch"));
  EXPECT_FALSE(contains(text_of_kernel(gather(5000), schedule::gpu_machine("sm_90")), "prefetch"));
}

// The interpreter reads what a request computes its place from: never behind the last index.
TEST(Requests, no_index_is_read_beyond_the_last_one) {
  OneKernel kernel(gather(1100));
  std::vector<float> table(1100 * 256), result(50 * 256);
  for (size_t i = 0; i < table.size(); ++i) table[i] = static_cast<float>(i % 8191);
  std::vector<int64_t> index(50);
  for (size_t i = 0; i < 50; ++i) index[i] = static_cast<int64_t>(i * 997 % 1100) - (i % 2) * 1100;
  std::vector<void*> buffers;
  for (const graph::Value* value : kernel.lowered().buffers)
    buffers.push_back(value->producer() != nullptr ? static_cast<void*>(result.data())
                      : value->name() == "i"       ? static_cast<void*>(index.data())
                                                   : static_cast<void*>(table.data()));
  ASSERT_TRUE(contains(kernel.text(), "prefetch"));
  kernel.run(buffers);
  for (size_t row = 0; row < 50; ++row)
    for (size_t column = 0; column < 256; ++column)
      ASSERT_EQ(result[row * 256 + column], table[row * 997 % 1100 * 256 + column]);
}

TEST(Requests, the_next_rows_of_columns_are_asked_for) {
  const auto sums = [](const std::string& rows) {
    return text_of_kernel("graph @g(%x: f32[" + rows + ", 1100]) {\n" +
                          "  %0: f32[1, 1100] = max %x {dims = [0], keepdim = true}\n"
                          "  %1: f32[" +
                          rows + ", 1100] = sub %x, %0\n  return %1\n}\n");
  };
  const std::string kernel = sums("1000");
  EXPECT_TRUE(contains(kernel, "reduce") && contains(kernel, "prefetch %b0[")) << kernel;
  EXPECT_FALSE(contains(sums("100"), "prefetch"));
}

// A reduction of few long rows is cut into pieces, and these are walked in blocks: the next block
// of the piece is asked for, never that of another row.
TEST(Requests, the_next_block_of_a_long_row_is_asked_for_by_its_last_pass) {
  const std::string kernel =
      text_of_kernel("graph @g(%x: f32[16, 128256]) {\n"
                     "  %0: f32[16, 1] = max %x {dims = [1], keepdim = true}\n"
                     "  %1: f32[16, 128256] = sub %x, %0\n"
                     "  %2: f32[16, 128256] = exp %1\n"
                     "  %3: f32[16] = sum %2 {dims = [1], keepdim = false}\n"
                     "  return %3\n}\n");
  EXPECT_TRUE(contains(kernel, "barrier")) << kernel;
  EXPECT_EQ(count(kernel, "prefetch"), 1U) << kernel;
  EXPECT_GT(kernel.find("prefetch"), kernel.find("max(")) << kernel;
  EXPECT_TRUE(contains(kernel, " + 4096)]")) << kernel;
}

// Of images of 784 numbers, of which the next one of a channel lies apart; the blocks that a longer
// one would be walked in are loops of one iteration.
TEST(Requests, the_next_image_of_symbolic_size_is_asked_for) {
  const std::string kernel =
      text_of_kernel("graph @g(%x: f32[s0, 64, s1, s1]) symbols(s0 hint 300, s1 hint 28) {\n"
                     "  %0: f32[1, 64, 1, 1] = sum %x {dims = [0, 2, 3], keepdim = true}\n"
                     "  return %0\n}\n");
  EXPECT_TRUE(contains(kernel, "prefetch %b0[")) << kernel;
}

// While exponentials are computed the next row comes; a pass that only copies has no time for it.
TEST(Requests, the_next_row_is_asked_for_while_one_is_computed_on) {
  const auto passes = [](const std::string& rows, const std::string& op) {
    const std::string type = "f32[" + rows + ", 1024]";
    return text_of_kernel("graph @g(%x: " + type + ") {\n  %0: f32[" + rows +
                          ", 1] = max %x {dims = [1], keepdim = true}\n" + "  %1: " + type +
                          " = sub %x, %0\n  %2: " + type + " = " + op + " %1\n  return %2\n}\n");
  };
  const std::string kernel = passes("4096", "exp");
  EXPECT_EQ(count(kernel, "prefetch %b0[1024 * (%"), 1U) << kernel;
  EXPECT_GT(kernel.find("prefetch"), kernel.find("max(")) << kernel;
  EXPECT_FALSE(contains(passes("4096", "neg"), "prefetch"));
  EXPECT_FALSE(contains(passes("64", "exp"), "prefetch"));
}

// Once, however many passes there are, if the first of them writes nothing.
TEST(Requests, the_next_row_is_asked_for_once) {
  const std::string kernel =
      text_of_kernel("graph @g(%x: f32[s0, 768]) symbols(s0 hint 4096) {\n"
                     "  %n: f32[] = full {value = 768.0}\n"
                     "  %0: f32[s0, 1] = sum %x {dims = [1], keepdim = true}\n"
                     "  %1: f32[s0, 1] = div %0, %n\n"
                     "  %2: f32[s0, 768] = sub %x, %1\n"
                     "  %3: f32[s0, 768] = mul %2, %2\n"
                     "  %4: f32[s0, 1] = sum %3 {dims = [1], keepdim = true}\n"
                     "  %5: f32[s0, 768] = div %2, %4\n"
                     "  %6: f32[s0, 768] = tanh %5\n  return %6\n}\n");
  EXPECT_EQ(count(kernel, "prefetch"), 1U) << kernel;
}

// What a kernel reads from one end to the other while it computes is asked for a page ahead; what
// only streams is left to the prefetchers.
TEST(Requests, the_next_page_is_asked_for_where_much_is_computed) {
  const auto map = [](const std::string& op, const std::string& size) {
    const std::string type = "f32[" + size + "]";
    return text_of_kernel("graph @g(%x: " + type + ") {\n  %0: " + type + " = " + op +
                          " %x\n  return %0\n}\n");
  };
  const std::string kernel = map("tanh", "1000000");
  EXPECT_EQ(count(kernel, "prefetch"), 1U) << kernel;
  EXPECT_TRUE(contains(kernel, " + 1024]")) << kernel;
  EXPECT_FALSE(contains(map("tanh", "10000"), "prefetch"));
  EXPECT_FALSE(contains(map("neg", "1000000"), "prefetch"));
}

// Neither do prefetchers suffice for what no cache holds, unless a second pass asks for it.
TEST(Requests, the_next_page_is_asked_for_where_caches_do_not_hold_it) {
  const auto kernel = [](int64_t streaming_bytes, const std::string& nodes, bool unasked = false) {
    return text_of_kernel("graph @g(%x: f32[1024, 4096]) {\n" + nodes + "}\n",
                          {.streaming_bytes = streaming_bytes, .prefetches_pages = unasked});
  };
  const std::string copy = "  %0: f32[1024, 4096] = neg %x\n  return %0\n";
  EXPECT_EQ(count(kernel(32 << 20, copy), "prefetch"), 1U);
  EXPECT_EQ(count(kernel((32 << 20) + 1, copy), "prefetch"), 0U);
  EXPECT_EQ(count(kernel(0, copy), "prefetch"), 0U);
  EXPECT_EQ(count(kernel(32 << 20, copy, true), "prefetch"), 0U);
  const std::string sum = "  %0: f32[1024] = sum %x {dims = [1], keepdim = false}\n  return %0\n";
  EXPECT_EQ(count(kernel(1 << 20, sum), "prefetch"), 1U);
  const std::string twice = "  %0: f32[1024, 1] = max %x {dims = [1], keepdim = true}\n"
                            "  %1: f32[1024, 4096] = sub %x, %0\n  return %1\n";
  EXPECT_EQ(count(kernel(1 << 20, twice), "prefetch"), 0U);
}

// What a row is gathered by would be read behind the last index.
TEST(Requests, no_next_row_is_asked_for_at_a_place_from_memory) {
  const std::string kernel = text_of_kernel(
      "graph @g(%x: f32[5000, 1024], %y: f32[5000, 1024], %i: i64[4000]) {\n"
      "  %0: f32[4000, 1024] = take %x, %i {dim = 0, error = \"index\", wrap = true}\n"
      "  %1: f32[4000, 1] = max %0 {dims = [1], keepdim = true}\n"
      "  %2: f32[4000, 1024] = sub %0, %1\n"
      "  %3: f32[4000, 1024] = exp %2\n  return %3\n}\n");
  for (size_t at = kernel.find("prefetch"); at != std::string::npos;
       at = kernel.find("prefetch", at + 1)) {
    const std::string line = kernel.substr(at, kernel.find('\n', at) - at);
    EXPECT_EQ(count(line, "%b"), count(line, "min(") + 1) << kernel;  // each index is bounded
  }
}

// Of the block beside it a line of each row, where 16 rows are read across.
TEST(Requests, the_next_block_of_a_transposed_operand_is_asked_for) {
  const std::string kernel = text_of_kernel("graph @g(%x: f32[2048, 512]) {\n"
                                            "  %0: f32[512, 2048] = permute %x {dims = [1, 0]}\n"
                                            "  %1: f32[512, 2048] = exp %0\n  return %1\n}\n",
                                            {.vector_bits = 512});
  EXPECT_TRUE(contains(kernel, "prefetch %b0[")) << kernel;
}

// Whether a masked load happens depends on the iteration, as do the indices that it may have.
TEST(Requests, nothing_is_asked_for_that_is_read_under_a_mask) {
  const std::string kernel =
      text_of_kernel("graph @g(%x: f32[5000, 256], %i: i64[50]) {\n"
                     "  %0: i64[60] = pad %i {dim = 0, before = 4, value = 7}\n"
                     "  %1: f32[60, 256] = take %x, %0 {dim = 0, error = \"none\", wrap = false}\n"
                     "  return %1\n}\n");
  EXPECT_FALSE(contains(kernel, "prefetch %b0[")) << kernel;
}

}  // namespace
}  // namespace mlcc::lower
