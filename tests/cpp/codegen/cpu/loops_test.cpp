#include <gtest/gtest.h>

#include "harness.h"

namespace mlcc::codegen::cpu::testing {
namespace {

TEST(Loops, serial_loops_with_copies_and_unrolled_loops) {
  const char* text = R"(
kernel @k(%b: i64, %n: i64; %x: in i32[40], %y: inout i32[40], %z: inout i32[40]) {
  for %i in %b..%n unroll(3) { store %y[%i] = %x[%i] + i32(%i) }
  for %j in 3..9 unrolled { store %z[%j] = %x[%j] * i32(%j) }
  for %k in %b..%n unrolled { store %z[%k] = %x[%k] }
  for %l in 0..5 unroll(2) { store %z[%l] = %x[%l] - i32(%l) }
})";
  for (int64_t begin : {0, 2, 40})
    for (int64_t end : {0, 1, 2, 3, 7, 40}) expect_as_interpreted(text, {begin, end});
}

TEST(Loops, serial_loops_inside_vector_loops) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %y: inout f32[%m, %n], %s: out f32[%n], %c: out i64[%n]) {
  for %j in 0..%n vector(8) unroll(2) {
    for %i in 0..%m { store %y[%i, %j] = %x[%i, %j] * 0.5 + %y[%i, %j] }
    reduce %k in 0..%m (%a: f32 = 0.0, %count: i64 = 0) {
      yield %a + %x[%k, %j], %count + 1
    } -> %sum, %steps
    store %s[%j] = %sum
    store %c[%j] = %steps
  }
})";
  for (int64_t m : {0, 1, 6})
    for (int64_t n : {1, 8, 16, 17, 40}) expect_as_interpreted(text, {m, n});
}

// Long bodies stand once, under a mask for all of several vectors: loads and stores of all kinds in
// front of unmapped memory.
TEST(Loops, long_bodies_of_every_length) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %h: in bf16[%n], %w: in f32[2 * %n], %i: in i64[%n], %t: in f32[8], %y: inout f32[%n], %z: out bf16[%n], %r: out f32[%n]) {
  for %j in 0..%n vector(16) unroll($U) {
    let %a: f32 = tanh(sin(%x[%j])) + cos(%t[3])
    let %b: f32 = sin(cos(f32(%h[%j]))) + %t[%i[%j]]
    let %c: f32 = cos(sin(%w[2 * %j + 1])) + load(%x[%j + 1], %j + 1 < %n, 2.0)
    let %d: f32 = sin(cos(sin(%a * 0.5 + %b))) + %x[%n - 1 - %j]
    alloc %own: stack f32[3]
    for %k in 0..3 { store %own[%k] = %d * f32(%k) }
    reduce %l in 0..3 (%sum: f32 = 0.0) { yield %sum + %own[%l] } -> %total
    if %c > 0.5 { store %y[%j] = sin(%d) } else { store %y[%j] = %y[%j] + 1.0 }
    store %z[%j] = bf16(%c)
    store %r[%n - 1 - %j] = %total
  }
})";
  for (const char* unroll : {"1", "2", "4"})
    for (int64_t n : {1, 2, 15, 16, 17, 31, 48, 63, 64, 65, 80, 130})
      expect_as_interpreted(
          substitute(text, {{"U", unroll}}), {n},
          {.relative = 2e-2, .specials = false, .ranges = {{"i", {0, 7}}, {"x", {-3, 3}}}});
}

// Trip counts that differ between lanes: a ragged sum.
TEST(Loops, bounds_that_differ_between_lanes) {
  const char* text = R"(
kernel @k(%rows: i64, %nnz: i64; %first: in i64[%rows], %count: in i64[%rows], %x: in f32[%nnz], %y: out f32[%rows], %z: inout i32[%nnz]) {
  for %r in 0..%rows vector(8) unroll(2) {
    let %b: i64 = %first[%r]
    reduce %k in %b..%b + %count[%r] (%a: f32 = 1.0) {
      let %v: f32 = %x[%k]
      yield %a + %v
    } -> %sum
    store %y[%r] = %sum
  }
  for %q in 0..%rows vector(4) {
    for %l in 0..%count[%q] {
      if %first[%q] == %l { store %z[%q * 10 + %l] = i32(%l) }
    }
  }
})";
  for (int64_t rows : {1, 7, 16, 19})
    expect_as_interpreted(
        text, {rows, 200},
        {.relative = 1e-5, .specials = false, .ranges = {{"first", {0, 20}}, {"count", {0, 9}}}});
}

TEST(Loops, causal_bounds) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n, %n], %y: out f32[%n]) {
  for %i in 0..%n vector(8) {
    reduce %j in 0..%i + 1 (%a: f32 = -inf) { yield max(%a, %x[%i, %j]) } -> %m
    store %y[%i] = %m
  }
})";
  for (int64_t n : {1, 5, 8, 21}) expect_as_interpreted(text, {n}, {.zero_sign = false});
}

TEST(Loops, divergent_branches) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %m: in bool[%n], %i: in i64[%n], %t: in f32[8], %y: inout f32[%n], %z: inout f32[%n]) {
  for %j in 0..%n vector(8) unroll(2) {
    if %m[%j] {
      store %y[%j] = %x[%j] + 1.0
      if %x[%j] > 0.0 { store %z[%j] = 1.0 } else { store %z[%j] = 2.0 }
    } else {
      if %i[%j] >= 0 & %i[%j] < 8 { store %y[%j] = %t[%i[%j]] }
    }
  }
})";
  for (int64_t n : {1, 8, 16, 37})
    expect_as_interpreted(text, {n}, {.ranges = {{"i", {-1000000, 8}}}});
}

// A branch on something that all lanes share, and a table that is empty where no lane looks into
// it.
TEST(Loops, uniform_branches) {
  const char* text = R"(
kernel @k(%n: i64, %f: i64; %t: in f32[%f], %x: in f32[%n], %y: inout f32[%n]) {
  for %j in 0..%n vector(8) {
    if %f > 0 {
      let %v: f32 = %t[%f - 1]
      store %y[%j] = %v + %x[%j]
    } else { store %y[%j] = 0.0 }
    if (%x[%j] > 1e30) & (%f > 0) { store %y[%j] = %t[0] }
  }
})";
  for (int64_t f : {0, 3}) expect_as_interpreted(text, {19, f});
}

TEST(Loops, scalar_branches_and_lets) {
  const char* text = R"(
kernel @k(%n: i64; %x: in i64[%n], %y: inout i64[%n]) {
  for %i in 0..%n {
    let %v: i64 = %x[%i]
    if %v > 0 { store %y[%i] = %v } else { if %v < -5 { store %y[%i] = 0 - %v } }
  }
})";
  expect_as_interpreted(text, {50});
}

TEST(Loops, checks) {
  const char* text = R"(
kernel @k(%n: i64, %bad: i64; %x: in i64[%n], %y: inout i64[%n]) errors(3: IndexError "index out of range", 7: RuntimeError "bad") {
  check %bad != 5 else 7
  barrier
  for %i in 0..%n parallel {
    for %j in 0..1 { check %x[%i] >= 0 else 7 }
  }
  barrier
  for %k in 0..%n vector(8) unroll(2) {
    check (%k != %bad) | (%k < 3) else 3
    if %x[%k] > 2 { check %x[%k] != 4 | %bad != 1 else 7 }
    store %y[%k] = %x[%k]
  }
})";
  for (int64_t bad : {-1, 0, 1, 2, 4, 5, 16, 30, 31})
    expect_as_interpreted(text, {31, bad}, {.ranges = {{"x", {0, 9}}}});
}

// The lanes behind the loop's end do not check anything.
TEST(Loops, checks_of_a_tail) {
  const char* text = R"(
kernel @k(%n: i64; %x: in i64[%n], %y: inout i64[%n]) errors(1: IndexError "index") {
  for %k in 0..%n vector(16) { check %x[%k] > 0 else 1 }
})";
  for (int64_t n = 0; n <= 33; ++n) {
    expect_as_interpreted(text, {n}, {.ranges = {{"x", {1, 2}}}});
    expect_as_interpreted(text, {n}, {.ranges = {{"x", {0, 40}}}});
  }
}

// Of the first iteration that fails, whatever the width.
TEST(Loops, details_of_checks) {
  const char* text = R"(
kernel @k(%n: i64, %low: i64, %m: i64; %x: in i64[%n], %y: inout i64[%n])
    errors(1: IndexError "index {0} of {1}", 2: RuntimeError "{0}") {
  for %k in 0..%n $MODE {
    let %v: i64 = %x[%k]
    if %k >= %low {
      check %v < 100 else 1 (%v * 2, %m + 1)
      check %m > 3 else 2 (%k)
    }
    store %y[%k] = %v
  }
})";
  for (const char* mode : {"", "vector(8)", "vector(8) unroll(2)", "parallel", "vector(1)"})
    for (int64_t low : {0, 5, 16, 29, 31})
      for (int64_t m : {3, 4})
        expect_as_interpreted(substitute(text, {{"MODE", mode}}), {31, low, m},
                              {.ranges = {{"x", {0, m == 3 ? 99 : 115}}}});
}

TEST(Loops, atomics) {
  const char* text = R"(
kernel @k(%n: i64; %at: in i64[%n], %x: in $T[%n], %m: in bool[%n], %y: inout $T[8]) {
  for %i in 0..%n vector(8) unroll(2) {
    atomic $OP %y[%at[%i]] = %x[%i] if %m[%i]
    atomic $OP %y[3] = %x[%i]
  }
  barrier
  for %j in 0..%n parallel { atomic $OP %y[%at[%j]] = %x[%j] }
})";
  for (const char* op : {"add", "min", "max", "and", "or", "xor"}) {
    const bool is_logic = op[0] == 'a' ? op[1] == 'n' : op[0] == 'o' || op[0] == 'x';
    for (const char* dtype : {"bool", "u8", "i8", "i16", "i32", "i64", "f32", "f64"}) {
      if (dtype[0] == 'f' ? is_logic : dtype[0] == 'b' && !is_logic) continue;
      for (int64_t n : {1, 16, 21})
        expect_as_interpreted(substitute(text, {{"T", dtype}, {"OP", op}}), {n},
                              {.relative = 1e-5,
                               .zero_sign = false,
                               .specials = op[0] == 'm',
                               .ranges = {{"at", {0, 7}}}});
    }
  }
}

// Indices that are counted along, from wherever a range begins; by negative numbers they are
// divided.
TEST(Loops, quotients_and_remainders_of_a_parallel_loop) {
  const char* text = R"(
kernel @k(%n: i64, %a: i64, %b: i64; %x: out i64[%n], %y: out i64[%n], %z: out i64[%n], %w: out i64[%n]) {
  for %i in 0..%n parallel {
    let %column: i64 = mod(%i, %a)
    let %rest: i64 = floordiv(%i, %a)
    let %row: i64 = mod(%rest, %b)
    let %plane: i64 = floordiv(floordiv(%i, %a), %b)
    let %third: i64 = mod(%i, 3)
    let %other: i64 = floordiv(%i, %b + 1)
    store %x[%i] = %column * 1000 + %row
    store %y[%i] = %plane * 1000 + %rest
    store %z[%i] = %third * 1000 + %other
    store %w[%i] = %column + mod(%other, %a)
  }
})";
  for (int64_t n : {1, 2, 37, 1000})
    for (int64_t a : {1, 2, 7, 64, -3})
      for (int64_t b : {1, 5, 1000, -7}) expect_as_interpreted(text, {n, a, b});
  expect_as_interpreted(text, {0, 0, 0});
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
