#include "lower/lower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <string>
#include <tuple>
#include <vector>

#include "one_kernel.h"
#include "schedule/machine.h"

namespace mlcc::lower {
namespace {

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i)
    values[i] = static_cast<float>((i * 7919 + 13) % 1009) / 64.0F - 7.0F;
  return values;
}

const schedule::Machine kCpu;

TEST(Lower, a_reduction_to_one_element_is_cut_into_pieces) {
  for (const schedule::Machine& machine : {kCpu, schedule::gpu_machine("sm_90")}) {
    OneKernel kernel(
        "graph @g(%x: f32[300001]) {\n  %0: f32[] = sum %x {dims = [0], keepdim = false}\n"
        "  return %0\n}\n",
        machine);
    ASSERT_EQ(kernel.lowered().kernel.phases.size(), 2U) << kernel.text();
    ASSERT_EQ(kernel.lowered().scratch.size(), 1U);
    std::vector<float> x = numbers(300001);
    float sum = std::nanf("");
    kernel.run({x.data(), &sum});
    const double expected = std::accumulate(x.begin(), x.end(), 0.0);
    EXPECT_NEAR(sum, expected, 1e-5 * 300001) << kernel.text();
  }
}

TEST(Lower, pieces_of_an_argmax_keep_the_first_place) {
  for (const schedule::Machine& machine : {kCpu, schedule::gpu_machine("sm_90")}) {
    OneKernel kernel(
        "graph @g(%x: f32[40000, 3]) {\n  %0: i64[3] = argmax %x {dims = [0], keepdim = false}\n"
        "  return %0\n}\n",
        machine);
    ASSERT_EQ(kernel.lowered().kernel.phases.size(), 2U) << kernel.text();
    EXPECT_EQ(kernel.lowered().scratch.size(), 2U);
    std::vector<float> x(120000, -1.0F);
    x[31000 * 3 + 0] = 5.0F;
    x[35000 * 3 + 0] = 5.0F;
    x[39999 * 3 + 1] = 2.0F;
    x[17 * 3 + 2] = std::nanf("");
    std::vector<int64_t> at(3, -1);
    kernel.run({x.data(), at.data()});
    EXPECT_EQ(at, (std::vector<int64_t>{31000, 39999, 17})) << kernel.text();
  }
}

TEST(Lower, columns_are_reduced_in_pieces) {
  OneKernel kernel(
      "graph @g(%x: f32[5000, 40]) {\n  %0: f32[40] = sum %x {dims = [0], keepdim = false}\n"
      "  return %0\n}\n",
      schedule::gpu_machine("sm_90"));
  ASSERT_EQ(kernel.lowered().kernel.phases.size(), 2U) << kernel.text();
  std::vector<float> x = numbers(200000), sums(40, std::nanf(""));
  kernel.run({x.data(), sums.data()});
  for (size_t column = 0; column < 40; ++column) {
    double expected = 0;
    for (size_t row = 0; row < 5000; ++row) expected += x[row * 40 + column];
    EXPECT_NEAR(sums[column], expected, 0.05) << column;
  }
}

// Several values are carried and several passes run over each block of columns, the last of which
// is incomplete, as is the last block of rows.
TEST(Lower, loops_over_rows_run_around_those_over_columns) {
  OneKernel kernel("graph @g(%x: f32[83, 1100], %w: f32[83, 1]) {\n"
                   "  %0: f32[83, 1100] = mul %x, %w\n"
                   "  %1: f32[1, 1100] = max %0 {dims = [0], keepdim = true}\n"
                   "  %2: i64[1, 1100] = argmax %0 {dims = [0], keepdim = true}\n"
                   "  %3: f32[83, 1100] = sub %0, %1\n"
                   "  %4: f32[1, 1100] = sum %3 {dims = [0], keepdim = true}\n"
                   "  %5: f32[83, 1100] = sub %3, %4\n"
                   "  return %1, %2, %5\n}\n",
                   kCpu);
  EXPECT_NE(kernel.text().find("unroll(8)"), std::string::npos) << kernel.text();
  const std::vector<float> x = numbers(83 * 1100), w = numbers(83);
  std::vector<float> largest(1100), rest(83 * 1100);
  std::vector<int64_t> at(1100);
  std::vector<void*> buffers;
  for (const graph::Value* value : kernel.lowered().buffers) {
    const bool is_row = value->type().shape[0].equals_constant(1);
    if (!value->name().empty())
      buffers.push_back(const_cast<float*>(value->name() == "x" ? x.data() : w.data()));
    else if (value->type().dtype == DType::kI64)
      buffers.push_back(at.data());
    else
      buffers.push_back(is_row ? largest.data() : rest.data());
  }
  kernel.run(buffers);
  for (size_t column = 0; column < 1100; ++column) {
    size_t best = 0;
    double sum = 0;
    const auto product = [&](size_t row) { return x[row * 1100 + column] * w[row]; };
    for (size_t row = 1; row < 83; ++row)
      if (product(row) > product(best)) best = row;
    for (size_t row = 0; row < 83; ++row) sum += product(row) - product(best);
    ASSERT_EQ(largest[column], product(best)) << column;
    ASSERT_EQ(at[column], static_cast<int64_t>(best)) << column;
    for (size_t row = 0; row < 83; ++row)
      ASSERT_NEAR(rest[row * 1100 + column], product(row) - product(best) - sum, 1e-2) << column;
  }
}

// Of two images there are three pieces; the third once was taken for one of a single image.
TEST(Lower, pieces_left_over_of_reductions_inside_each_other_touch_nothing) {
  OneKernel kernel(
      "graph @g(%x: f32[2, 1024, 5, 10], %w: f32[2, 1024, 5, 10] strides(51200, 1, 10240, 1024)) "
      "{\n  %0: f32[2, 1024, 5, 10] strides(51200, 1, 10240, 1024) = mul %w, %x\n"
      "  %1: f32[1024] = sum %0 {dims = [0, 2, 3], keepdim = false}\n"
      "  return %0, %1\n}\n",
      {.threads = 2, .last_level_bytes = 32 << 20});
  const std::string text = kernel.text();
  EXPECT_TRUE(contains(text, "in 0..3 parallel") && contains(text, "== 1 {")) << text;
  const size_t pixels = 50, channels = 1024;
  const std::vector<float> x = numbers(2 * pixels * channels), w = numbers(2 * pixels * channels);
  std::vector<float> products(x.size()), sums(channels);
  std::vector<void*> buffers;
  for (const graph::Value* value : kernel.lowered().buffers) {
    if (!value->name().empty())
      buffers.push_back(const_cast<float*>(value->name() == "x" ? x.data() : w.data()));
    else
      buffers.push_back(value->type().shape.size() == 1 ? sums.data() : products.data());
  }
  kernel.run(buffers);
  for (size_t channel = 0; channel < channels; ++channel) {
    double sum = 0;
    for (size_t pixel = 0; pixel < 2 * pixels; ++pixel) {
      const size_t image = pixel / pixels, place = pixel % pixels;
      const float product =
          x[(image * channels + channel) * pixels + place] * w[pixel * channels + channel];
      ASSERT_EQ(products[pixel * channels + channel], product) << channel << ", " << pixel;
      sum += product;
    }
    ASSERT_NEAR(sums[channel], sum, 1e-1) << channel;
  }
}

TEST(Lower, what_waits_for_a_reduction_keeps_it_in_one_phase) {
  OneKernel kernel(
      "graph @g(%x: f32[8, 16384]) {\n  %0: f32[8, 1] = sum %x {dims = [1], keepdim = true}\n"
      "  %1: f32[8, 16384] = sub %x, %0\n  return %1\n}\n",
      schedule::gpu_machine("sm_90"));
  EXPECT_EQ(kernel.lowered().kernel.phases.size(), 1U) << kernel.text();
}

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Rows of unknown length, and columns side by side: where no buffer can hold them.
TEST(Lower, a_later_output_holds_what_the_passes_of_a_row_share) {
  const std::string columns = "graph @g(%x: f32[40, 64]) {\n  %0: f32[40, 64] = exp %x\n"
                              "  %1: f32[1, 64] = sum %0 {dims = [0], keepdim = true}\n"
                              "  %2: f32[40, 64] = div %0, %1\n";
  const std::string rows = "graph @g(%x: f32[8, s0]) symbols(s0 in 2..65536) {\n"
                           "  %0: f32[8, s0] = exp %x\n"
                           "  %1: f32[8, 1] = sum %0 {dims = [1], keepdim = true}\n"
                           "  %2: f32[8, s0] = div %0, %1\n";
  for (const std::string& text : {columns, rows})
    EXPECT_EQ(occurrences(OneKernel(text + "  return %2\n}\n", kCpu).text(), "exp("), 1U) << text;
  // Not where a second result needs it after the first one was written.
  const std::string two = columns + "  %3: f32[40, 64] = add %0, %1\n  return %2, %3\n}\n";
  EXPECT_EQ(occurrences(OneKernel(two, kCpu).text(), "exp("), 2U);
}

// Dear numbers are computed once for all passes over a row, also where a cast stands before them.
TEST(Lower, a_row_keeps_what_was_drawn) {
  OneKernel kernel("graph @g(%x: f32[8, 64], %seed: i64[]) {\n"
                   "  %0: i64[512] = iota {start = 0, step = 1}\n"
                   "  %1: i64[8, 64] = reshape %0\n"
                   "  %2: i32[8, 64] = philox %1, %seed\n  %3: f32[8, 64] = cast %2\n"
                   "  %4: f32[8, 64] = mul %x, %3\n"
                   "  %5: f32[8, 1] = sum %4 {dims = [1], keepdim = true}\n"
                   "  %6: f32[8, 64] = sub %4, %5\n  return %6\n}\n",
                   kCpu);
  EXPECT_EQ(occurrences(kernel.text(), "* 3528905107"), 10U) << kernel.text();
}

// The first words of the known answers that Random123 gives for philox2x32 of 10 rounds.
TEST(Lower, philox_gives_the_known_answers) {
  OneKernel kernel("graph @g(%counter: i64[3], %seed: i64[3]) {\n"
                   "  %0: i32[3] = philox %counter, %seed\n  return %0\n}\n",
                   kCpu);
  std::vector<uint64_t> counter = {0, 0xffffffff, 0x243f6a88};
  std::vector<uint64_t> seed = {0, 0xffffffffffffffff, 0x85a308d313198a2e};
  std::vector<uint32_t> bits(3);
  kernel.run({counter.data(), seed.data(), bits.data()});
  EXPECT_EQ(bits, (std::vector<uint32_t>{0xff1dae59, 0x2c3f628b, 0xdd7ce038}));
}

TEST(Lower, a_transposed_read_goes_through_a_tile_on_a_gpu) {
  const std::string text = "graph @g(%x: f32[70, 45], %y: f32[45, 70]) {\n"
                           "  %0: f32[45, 70] strides(1, 45) = permute %x {dims = [1, 0]}\n"
                           "  %1: f32[45, 70] = add %0, %y\n  return %1\n}\n";
  OneKernel kernel(text, schedule::gpu_machine("sm_90"));
  EXPECT_NE(kernel.text().find("alloc"), std::string::npos) << kernel.text();
  std::vector<float> x = numbers(3150), y = numbers(3150), z(3150, std::nanf(""));
  kernel.run({x.data(), y.data(), z.data()});
  for (size_t i = 0; i < 45; ++i)
    for (size_t j = 0; j < 70; ++j)
      ASSERT_EQ(z[i * 70 + j], x[j * 45 + i] + y[i * 70 + j]) << i << ", " << j;
  const std::string in_registers = OneKernel(text, kCpu).text();
  EXPECT_EQ(in_registers.find("alloc"), std::string::npos);
  EXPECT_NE(in_registers.find("in 0..16 unrolled"), std::string::npos) << in_registers;
}

// Largest elements of 3 neighbours with a step of 2, in rows of 70 with one more at either end.
TEST(Lower, windows_beyond_the_ends_are_masked_there_alone) {
  const std::string text = "graph @g(%x: f32[5, 70]) {\n"
                           "  %0: f32[5, 71] = pad %x {dim = 1, before = 1, value = -inf}\n"
                           "  %1: f32[5, 35, 3] = window %0 {dim = 1, step = 2, dilation = 1}\n"
                           "  %2: f32[5, 35] = max %1 {dims = [2], keepdim = false}\n"
                           "  return %2\n}\n";
  for (const schedule::Machine& machine : {kCpu, schedule::gpu_machine("sm_90")}) {
    OneKernel kernel(text, machine);
    std::vector<float> x = numbers(5 * 70), y(5 * 35);
    kernel.run({x.data(), y.data()});
    for (size_t row = 0; row < 5; ++row)
      for (size_t o = 0; o < 35; ++o) {
        float expected = x[row * 70 + 2 * o];
        if (o > 0) expected = std::max(expected, x[row * 70 + 2 * o - 1]);
        if (2 * o + 1 < 70) expected = std::max(expected, x[row * 70 + 2 * o + 1]);
        EXPECT_EQ(y[row * 35 + o], expected) << row << ", " << o << kernel.text();
      }
    if (machine.is_gpu) continue;
    const std::string code = kernel.text();
    const size_t inside = code.find(" in 16..35 vector");
    ASSERT_NE(inside, std::string::npos) << code;
    EXPECT_EQ(code.find("select", inside), std::string::npos) << code;
  }
}

TEST(Lower, a_row_beyond_its_ends_is_three_loops) {
  for (const auto& [mode, first, last] :
       {std::tuple{"reflect", 2, 17}, {"replicate", 0, 19}, {"circular", 18, 1}}) {
    OneKernel kernel(
        std::string("graph @g(%x: f32[3, 20]) {\n  %0: f32[3, 24] = extend %x {dim = 1, "
                    "before = 2, mode = \"") +
            mode + "\"}\n  %1: f32[3, 24] = neg %0\n  return %1\n}\n",
        kCpu);
    std::vector<float> x = numbers(60), y(72);
    kernel.run({x.data(), y.data()});
    for (size_t row = 0; row < 3; ++row) {
      EXPECT_EQ(y[row * 24], -x[row * 20 + first]) << kernel.text();
      for (size_t i = 0; i < 20; ++i) EXPECT_EQ(y[row * 24 + 2 + i], -x[row * 20 + i]);
      EXPECT_EQ(y[row * 24 + 23], -x[row * 20 + last]) << kernel.text();
    }
    EXPECT_NE(kernel.text().find(" in 2..22 vector"), std::string::npos) << kernel.text();
  }
}

TEST(Lower, parts_that_lie_side_by_side_are_loops_of_their_own) {
  OneKernel kernel(
      "graph @g(%x: f32[4, 40], %y: f32[4, 30]) {\n"
      "  %0: f32[4, 70] = cat %x, %y {dim = 1}\n  %1: f32[4, 70] = neg %0\n  return %1\n}\n",
      kCpu);
  std::vector<float> x = numbers(160), y = numbers(120), z(280);
  kernel.run({x.data(), z.data(), y.data()});  // in the order of first use
  for (size_t row = 0; row < 4; ++row)
    for (size_t i = 0; i < 70; ++i)
      EXPECT_EQ(z[row * 70 + i], i < 40 ? -x[row * 40 + i] : -y[row * 30 + i - 40]);
  EXPECT_EQ(kernel.text().find("select"), std::string::npos) << kernel.text();
}

TEST(Lower, parts_of_an_outer_axis_are_branches) {
  OneKernel kernel("graph @g(%x: f32[2, 3, 20], %y: f32[2, 2, 20]) {\n"
                   "  %0: f32[2, 5, 20] = cat %x, %y {dim = 1}\n  %1: f32[2, 5, 20] = neg %0\n"
                   "  return %1\n}\n",
                   kCpu);
  std::vector<float> x = numbers(120), y = numbers(80), z(200);
  kernel.run({x.data(), z.data(), y.data()});
  for (size_t i = 0; i < 2; ++i)
    for (size_t j = 0; j < 5; ++j)
      for (size_t k = 0; k < 20; ++k)
        EXPECT_EQ(z[(i * 5 + j) * 20 + k],
                  j < 3 ? -x[(i * 3 + j) * 20 + k] : -y[(i * 2 + j - 3) * 20 + k]);
  EXPECT_NE(kernel.text().find("if "), std::string::npos) << kernel.text();
  EXPECT_EQ(kernel.text().find("select"), std::string::npos) << kernel.text();
}

TEST(Lower, branches_share_the_buffers_of_a_row) {
  OneKernel kernel("graph @g(%x: f32[3, 20], %y: f32[2, 20]) {\n"
                   "  %0: f32[5, 20] = cat %x, %y {dim = 0}\n  %1: f32[5, 20] = exp %0\n"
                   "  %2: f32[5, 1] = sum %1 {dims = [1], keepdim = true}\n"
                   "  %3: f32[5, 20] = div %1, %2\n  return %3\n}\n",
                   kCpu);
  std::vector<float> x = numbers(60), y = numbers(40), z(100);
  kernel.run({x.data(), z.data(), y.data()});  // in the order of first use
  for (size_t row = 0; row < 5; ++row) {
    const float* in = row < 3 ? &x[row * 20] : &y[(row - 3) * 20];
    const auto add_exp = [](float sum, float e) { return sum + std::exp(e); };
    const float sum = std::accumulate(in, in + 20, 0.0F, add_exp);
    for (size_t i = 0; i < 20; ++i)
      EXPECT_NEAR(z[row * 20 + i], std::exp(in[i]) / sum, 1e-6) << kernel.text();
  }
  const std::string text = kernel.text();
  EXPECT_NE(text.find("if "), std::string::npos) << text;
  EXPECT_NE(text.find("alloc"), std::string::npos) << text;
  EXPECT_EQ(text.find("alloc"), text.rfind("alloc")) << text;
}

// Rows get their base right before their updates, unless not all of them are updated.
TEST(Lower, rows_are_filled_where_they_are_updated) {
  const auto updated = [](const std::string& rows) {
    return "graph @g(%i: i64[" + rows + ", 5], %s: f32[" + rows +
           ", 5]) {\n"
           "  %0: f32[] = full {value = 0.5}\n"
           "  %1: f32[3, 40] = expand %0\n"
           "  %2: f32[3, 40] = scatter %1, %i, %s {combine = \"add\", dim = 1, error = "
           "\"none\", ordered = false}\n"
           "  return %2\n}\n";
  };
  for (const int64_t rows : {3, 2}) {
    OneKernel kernel(updated(std::to_string(rows)), kCpu);
    ASSERT_EQ(kernel.lowered().kernel.phases.size(), rows == 3 ? 1U : 2U) << kernel.text();
    const auto count = static_cast<size_t>(5 * rows);
    std::vector<int64_t> places(count);
    for (size_t i = 0; i < count; ++i) places[i] = static_cast<int64_t>(i * 17 % 40 / 2);
    std::vector<float> source = numbers(count), result(120, std::nanf("")), expected(120, 0.5F);
    for (size_t i = 0; i < count; ++i)
      expected[i / 5 * 40 + static_cast<size_t>(places[i])] += source[i];
    std::vector<void*> buffers;
    for (const graph::Value* value : kernel.lowered().buffers)
      buffers.push_back(value->producer() != nullptr ? static_cast<void*>(result.data())
                        : value->name() == "i"       ? static_cast<void*>(places.data())
                                                     : static_cast<void*>(source.data()));
    kernel.run(buffers);
    EXPECT_EQ(result, expected) << kernel.text();
  }
}

// Places of a range are distinct, unless it wraps around from negative numbers.
TEST(Lower, threads_share_updates_at_distinct_places) {
  for (const int64_t start : {0, -4}) {
    OneKernel kernel("graph @g(%x: f32[4, 64], %s: f32[8, 64]) {\n"
                     "  %0: i64[8] = iota {start = " +
                         std::to_string(start) +
                         ", step = 1}\n"
                         "  %1: f32[4, 64] = index_put %x, %0, %s {combine = \"set\", dim = 0, "
                         "error = \"none\", ordered = false, wrap = true}\n"
                         "  return %1\n}\n",
                     kCpu);
    EXPECT_EQ(kernel.lowered().phases.back().extent.equals_constant(8), start == 0)
        << kernel.text();
  }
}

TEST(Lower, gpu_kernels_say_how_many_threads_share_an_iteration) {
  const std::string text = "graph @g(%x: f32[4096, 1024]) {\n"
                           "  %0: f32[4096, 1] = sum %x {dims = [1], keepdim = true}\n"
                           "  %1: f32[4096, 1024] = sub %x, %0\n  return %1\n}\n";
  OneKernel kernel(text, schedule::gpu_machine("sm_90"));
  EXPECT_NE(kernel.text().find("parallel group("), std::string::npos) << kernel.text();
  EXPECT_EQ(OneKernel(text, kCpu).text().find("group("), std::string::npos);
}

}  // namespace
}  // namespace mlcc::lower
