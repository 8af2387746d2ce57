#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "harness.h"
#include "loop/scalar_value.h"
#include "loop/text.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr DType kDTypes[] = {DType::kBool, DType::kU8,  DType::kI8,   DType::kI16, DType::kI32,
                             DType::kI64,  DType::kF16, DType::kBF16, DType::kF32, DType::kF64};

constexpr const char* kCast = R"(
kernel @k(%n: i64; %x: in $F[%n], %y: out $T[%n]) {
  for %i in 0..%n vector($W) unroll(2) { store %y[%i] = $T(%x[%i]) }
})";

std::string cast_text(DType from, DType to, int width) {
  return substitute(kCast, {{"F", std::string(dtype_name(from))},
                            {"T", std::string(dtype_name(to))},
                            {"W", std::to_string(width)}});
}

TEST(Casts, between_all_dtypes) {
  for (DType from : kDTypes) {
    for (DType to : kDTypes) {
      if (from == to) continue;
      Comparison how;
      // A float outside the range of the integer dtype may become anything.
      if (is_float(from) && is_integer(to)) how.ranges["x"] = {to == DType::kU8 ? 0 : -100, 100};
      for (int width : {1, 16}) expect_as_interpreted(cast_text(from, to, width), {150}, how);
    }
  }
}

// A float that does not fit the integer dtype is harmless: the kernel runs on.
TEST(Casts, out_of_range_is_harmless) {
  for (const char* to : {"u8", "i32", "i64"}) {
    const std::string text = substitute(R"(
kernel @k(%n: i64; %x: in f32[%n], %z: out f32[%n]) {
  for %i in 0..%n vector(8) { store %z[%i] = select($T(%x[%i]) == $T(3), 1.0, 1.0) }
})",
                                        {{"T", to}});
    expect_as_interpreted(text, {200});
  }
}

// Runs one cast kernel of each backend on `input` and compares all elements with loop::convert.
void expect_casts(DType from, DType to, const std::vector<uint64_t>& input) {
  loop::Arena arena;
  const loop::Kernel kernel = loop::parse_kernel(arena, cast_text(from, to, 16));
  const auto from_size = static_cast<size_t>(dtype_size(from)),
             to_size = static_cast<size_t>(dtype_size(to));
  const GuardedBuffer x(input.size() * from_size), y(input.size() * to_size);
  for (size_t i = 0; i < input.size(); ++i)
    std::memcpy(x.bytes().data() + i * from_size, &input[i], from_size);
  for (const auto& backend : backends()) {
    const auto code = backend->compile({.kernels = {{.text = loop::print(kernel)}}});
    ASSERT_TRUE(code);
    std::mt19937_64 random(1);
    const auto loaded = load(code->bytes, kernel);
    ASSERT_EQ(run_kernel(kernel, loaded, {static_cast<int64_t>(input.size())}, {x, y}, random).code,
              0);
    int wrong = 0;
    for (size_t i = 0; i < input.size() && wrong < 5; ++i) {
      uint64_t found = 0;
      std::memcpy(&found, y.bytes().data() + i * to_size, to_size);
      const uint64_t expected = loop::convert(from, to, input[i]);
      const bool both_nan = is_float(to) && std::isnan(loop::decode_float(to, expected)) &&
                            std::isnan(loop::decode_float(to, found));
      if (found == expected || both_nan) continue;
      ++wrong;
      ADD_FAILURE() << backend->target().cpu << ": " << dtype_name(from) << " 0x" << std::hex
                    << input[i] << " to " << dtype_name(to) << ": found 0x" << found
                    << ", expected 0x" << expected;
    }
  }
}

TEST(Casts, all_values_of_16_bit_floats_widen) {
  std::vector<uint64_t> all;
  for (uint64_t bits = 0; bits < 65536; ++bits) all.push_back(bits);
  for (DType from : {DType::kF16, DType::kBF16})
    for (DType to : {DType::kF32, DType::kF64, DType::kBool}) expect_casts(from, to, all);
}

// Every 16-bit value, the middle between it and the next, and the floats around that middle.
TEST(Casts, rounding_to_16_bit_floats_is_to_nearest_even) {
  for (DType to : {DType::kF16, DType::kBF16}) {
    std::vector<uint64_t> input;
    for (uint64_t bits = 0; bits < 65536; ++bits) {
      const double value = loop::decode_float(to, bits);
      const uint64_t exact = loop::encode_float(DType::kF32, value);
      const double next = loop::decode_float(to, (bits + 1) & 0xffff);
      const uint64_t middle = loop::encode_float(DType::kF32, value / 2 + next / 2);
      for (uint64_t around :
           {exact, middle, (middle + 1) & 0xffffffff, (middle - 1) & 0xffffffff, exact | 1})
        input.push_back(around);
    }
    expect_casts(DType::kF32, to, input);
    expect_casts(DType::kF64, to, [&] {
      std::vector<uint64_t> wide;
      for (uint64_t bits : input) wide.push_back(loop::convert(DType::kF32, DType::kF64, bits));
      return wide;
    }());
  }
}

TEST(Casts, random_bits_to_16_bit_floats) {
  std::mt19937_64 random(3);
  std::vector<uint64_t> input;
  for (int i = 0; i < 200000; ++i) input.push_back(random() & 0xffffffff);
  expect_casts(DType::kF32, DType::kBF16, input);
  expect_casts(DType::kF32, DType::kF16, input);
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
