#include <gtest/gtest.h>

#include "harness.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr const char* kDTypes[] = {"bool", "u8", "i16", "bf16", "i32", "f32", "f64"};

TEST(Memory, strides_known_and_unknown) {
  const char* text = R"(
kernel @k(%n: i64, %s: i64; %x: in $T[%n] strides[3], %y: in $T[%n] strides[%s], %z: out $T[%n] strides[2],
          %w: out $T[%n] strides[%s], %v: out $T[%n] strides[1]) {
  for %i in 0..%n vector(8) unroll(2) {
    store %z[%i] = %y[%i]
    store %w[%i] = %x[%i]
    store %v[%i] = %x[%i]
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {0, 1, 7, 16, 45})
      for (int64_t stride : {1, 5})
        expect_as_interpreted(substitute(text, {{"T", dtype}}), {n, stride});
}

TEST(Memory, transposed) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in $T[%m, %n], %y: out $T[%n, %m]) {
  for %i in 0..%m parallel {
    for %j in 0..%n vector(16) { store %y[%j, %i] = %x[%i, %j] }
  }
})";
  for (const char* dtype : kDTypes)
    expect_as_interpreted(substitute(text, {{"T", dtype}}), {5, 37});
}

// Blocks of W x W: %x and %w are transposed in registers, %w from where a let says; the others are
// not contiguous along the unrolled loop, may be written, or are masked.
TEST(Memory, transposed_in_registers) {
  const char* text = R"(
kernel @k(%n: i64, %m: i64; %x: in $T[%n * %m], %w: in $T[%n * %m + 1], %z: inout $T[%n * %m], %y: out $T[%n * %m],
          %v: out $T[%n * %m]) {
  for %b in 0..floordiv(%m, $W) parallel {
    for %i in 0..%n vector($W) {
      for %u in 0..$W unrolled {
        let %j: i64 = $W * %b + %u
        let %k: i64 = %i * %m + %j
        store %y[%j * %n + %i] = %x[%k]
        store %v[%j * %n + %i] = select(mod(%i, 2) == 0, %w[%k + 1], load(%x[%i * %m + %j], %u < 3))
        store %z[%k] = select(mod(%u, 2) == 0, %z[%k], %x[%j * %n + %i])
      }
    }
  }
})";
  for (const char* dtype : kDTypes)
    for (const char* width : {"4", "8", "16"})
      expect_as_interpreted(substitute(text, {{"T", dtype}, {"W", width}}), {37, 32});
}

TEST(Memory, gather_and_scatter) {
  const char* text = R"(
kernel @k(%n: i64, %m: i64; %x: in $T[%m, 3], %at: in i64[%n], %y: out $T[%n], %z: inout $T[%n, 20]) {
  for %i in 0..%n vector(8) unroll(2) {
    let %k: i64 = %at[%i]
    store %y[%i] = %x[%k, 1]
    store %z[%i, %k] = %x[19 - %k, %k - floordiv(%k, 3) * 3]
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {1, 16, 29})
      expect_as_interpreted(substitute(text, {{"T", dtype}}), {n, 20},
                            {.ranges = {{"at", {0, 19}}}});
}

TEST(Memory, broadcast_row_and_column) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %r: in f32[%m], %c: in f32[%n], %s: in f32[], %y: out f32[%m, %n]) {
  for %i in 0..%m {
    for %j in 0..%n vector(16) { store %y[%i, %j] = %x[%i, %j] * %r[%i] + %c[%j] * %s[] }
  }
})";
  expect_as_interpreted(text, {4, 35});
}

// A padded read: the masked lanes lie outside the buffer, some of them before its begin.
TEST(Memory, masked_loads_touch_nothing_outside) {
  const char* text = R"(
kernel @k(%n: i64, %p: i64; %x: in $T[%n], %y: out $T[%n + 2 * %p], %z: out $T[%n + 2 * %p]) {
  for %i in 0..%n + 2 * %p vector(8) unroll(2) {
    let %j: i64 = %i - %p
    let %inside: bool = (%j >= 0) & (%j < %n)
    store %y[%i] = load(%x[%j], %inside, $ONE)
    store %z[%i] = load(%x[%j * 1000003], %inside & (%j == 0))
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {0, 1, 5, 40})
      for (int64_t pad : {0, 1, 30}) {
        const std::string one = dtype == std::string("bool") ? "true" : std::string(dtype) + "(1)";
        expect_as_interpreted(substitute(text, {{"T", dtype}, {"ONE", one}}), {n, pad});
      }
}

TEST(Memory, reversed) {
  const char* text = R"(
kernel @k(%n: i64; %x: in $T[%n], %y: out $T[%n], %z: out $T[%n + 9]) {
  for %i in 0..%n vector(8) unroll(2) {
    store %y[%i] = %x[%n - 1 - %i]
  }
  for %j in 0..%n + 9 vector(8) unroll(2) {
    store %z[%j] = load(%x[%n + 3 - %j], (%j > 3) & (%j < %n + 4), $ONE)
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {0, 1, 7, 16, 45}) {
      const std::string one = dtype == std::string("bool") ? "true" : std::string(dtype) + "(1)";
      expect_as_interpreted(substitute(text, {{"T", dtype}, {"ONE", one}}), {n});
    }
}

TEST(Memory, masked_stores) {
  const char* text = R"(
kernel @k(%n: i64, %flag: i64; %x: in $T[%n], %m: in bool[%n], %y: inout $T[%n], %z: inout $T[%n] strides[2], %w: inout $T[1]) {
  for %i in 0..%n vector(8) unroll(2) {
    store %y[%i] = %x[%i] if %m[%i]
    store %z[%i] = %x[%i] if %m[%i] & (%i > 3)
  }
  for %k in 0..%n vector(8) {
    store %y[%k] = %x[0] if %flag == 1
    store %w[%k - 5] = %x[%k] if %k == 5
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {1, 8, 16, 31})
      for (int64_t flag : {0, 1})
        expect_as_interpreted(substitute(text, {{"T", dtype}}), {n, flag});
}

TEST(Memory, masked_scalar_accesses) {
  const char* text = R"(
kernel @k(%n: i64, %at: i64; %x: in f32[%n], %y: inout f32[%n]) {
  let %ok: bool = (%at >= 0) & (%at < %n)
  for %i in 0..%n vector(4) { store %y[%i] = load(%x[%at], %ok, 7.0) }
  for %j in 0..%n vector(4) { store %y[%j] = %y[%j] + load(%x[%at], %ok & (%j < 3), f32(%j)) }
  store %y[%at] = 1.5 if %ok
})";
  for (int64_t at : {-1000000, -1, 0, 9, 10, 1000000}) expect_as_interpreted(text, {10, at});
}

// A local buffer inside a vector loop is one per iteration.
TEST(Memory, local_buffers_of_lanes) {
  const char* text = R"(
kernel @k(%n: i64; %x: in $T[%n, 4], %at: in i64[%n], %m: in bool[%n], %y: out $T[%n], %z: out $T[%n]) {
  for %i in 0..%n vector(8) unroll(2) {
    alloc %t: stack $T[2, 2]
    for %k in 0..4 { store %t[floordiv(%k, 2), %k - floordiv(%k, 2) * 2] = %x[%i, %k] }
    if %m[%i] { store %t[0, 1] = %x[%i, 3] }
    store %t[1, 0] = %x[%i, 0] if %at[%i] == 2
    store %y[%i] = %t[0, 1]
    store %z[%i] = %t[floordiv(%at[%i], 2), %at[%i] - floordiv(%at[%i], 2) * 2]
  }
})";
  for (const char* dtype : kDTypes)
    for (int64_t n : {1, 15, 16, 35})
      expect_as_interpreted(substitute(text, {{"T", dtype}}), {n}, {.ranges = {{"at", {0, 3}}}});
}

TEST(Memory, local_buffers_outside_of_lanes) {
  const char* text = R"(
kernel @k(%m: i64; %x: in f32[%m, 21], %y: out f32[%m, 21]) {
  for %i in 0..%m parallel {
    alloc %t: stack f32[21]
    for %j in 0..21 vector(8) { store %t[%j] = %x[%i, %j] * 2.0 }
    for %k in 0..21 vector(8) { store %y[%i, %k] = %t[20 - %k] }
  }
})";
  expect_as_interpreted(text, {5});
}

// In a loop over lanes a value that all share is stored by the last.
TEST(Memory, in_place_update) {
  const char* text = R"(
kernel @k(%n: i64; %x: inout f32[%n]) {
  for %i in 0..%n vector(8) unroll(4) { store %x[%i] = %x[%i] * %x[%i] }
})";
  for (int64_t n : {0, 3, 8, 33, 70}) expect_as_interpreted(text, {n});
}

TEST(Memory, scratch_passes_between_phases) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %t: scratch f32[%n], %y: out f32[%n]) {
  for %i in 0..%n parallel { store %t[%i] = %x[%i] + 1.0 }
  barrier
  for %j in 0..%n parallel { store %y[%j] = %t[%n - 1 - %j] }
})";
  expect_as_interpreted(text, {23});
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
