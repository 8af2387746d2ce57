#include <gtest/gtest.h>

#include "harness.h"

namespace mlcc::codegen::cpu::testing {
namespace {

TEST(Reduce, sums_of_every_length) {
  const char* text = R"(
kernel @k(%n: i64; %x: in $T[%n], %y: out $T[1]) {
  reduce %i in 0..%n vector($W) unroll($U) (%a: $T = $T(0)) { yield %a + %x[%i] }
    combine (%l, %r) { yield %l + %r } -> %s
  store %y[0] = %s
})";
  for (const char* dtype : {"f32", "f64", "i32", "i64", "u8"})
    for (int width : {1, 4, 16})
      for (int unroll : {1, 3, 4})
        for (int64_t n : {0, 1, 2, 3, 4, 15, 16, 17, 31, 48, 63, 64, 65, 130})
          expect_as_interpreted(substitute(text, {{"T", dtype},
                                                  {"W", std::to_string(width)},
                                                  {"U", std::to_string(unroll)}}),
                                {n}, {.relative = 1e-5, .specials = false});
}

TEST(Reduce, long_bodies_of_every_length) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %y: out f32[2]) {
  reduce %i in 0..%n vector(16) unroll($U) (%a: f32 = 0.0, %b: f32 = -inf) {
    let %p: f32 = sin(cos(sin(cos(sin(%x[%i])))))
    let %q: f32 = cos(sin(cos(sin(%p + %x[%i]))))
    yield %a + %p, max(%b, %q)
  } combine (%l, %m, %r, %s) { yield %l + %r, max(%m, %s) } -> %sum, %most
  store %y[0] = %sum
  store %y[1] = %most
})";
  for (const char* unroll : {"1", "3", "4"})
    for (int64_t n : {0, 1, 15, 16, 17, 63, 64, 65, 130})
      expect_as_interpreted(substitute(text, {{"U", unroll}}), {n},
                            {.relative = 1e-5, .specials = false});
}

TEST(Reduce, extremes_keep_nan) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %y: out f32[%m, 2]) {
  for %i in 0..%m parallel {
    reduce %j in 0..%n vector(16) unroll(2) (%a: f32 = inf, %b: f32 = -inf) {
      yield min(%a, %x[%i, %j]), max(%b, %x[%i, %j])
    } combine (%la, %lb, %ra, %rb) { yield min(%la, %ra), max(%lb, %rb) } -> %low, %high
    store %y[%i, 0] = %low
    store %y[%i, 1] = %high
  }
})";
  for (int64_t n : {0, 1, 7, 16, 33, 100})
    expect_as_interpreted(text, {30, n}, {.zero_sign = false});
}

TEST(Reduce, constant_lengths) {
  for (int n : {1, 8, 16, 40, 64, 128, 200}) {
    const std::string text = substitute(R"(
kernel @k(%m: i64; %x: in f32[%m, $N], %y: out f32[%m]) {
  for %i in 0..%m parallel {
    reduce %j in 0..$N vector(16) unroll(4) (%a: f32 = 0.0) { yield fma(%x[%i, %j], %x[%i, %j], %a) }
      combine (%l, %r) { yield %l + %r } -> %s
    store %y[%i] = sqrt(%s)
  }
})",
                                        {{"N", std::to_string(n)}});
    expect_as_interpreted(text, {3}, {.relative = 1e-5, .specials = false});
  }
}

// Several values of different dtypes; the first of equal maxima wins.
TEST(Reduce, argmax) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %y: out i64[%m]) {
  for %i in 0..%m parallel {
    reduce %j in 0..%n vector(8) unroll(2) (%best: f32 = -inf, %at: i64 = 9223372036854775807) {
      let %v: f32 = %x[%i, %j]
      let %better: bool = (%v > %best) | ((%v == %best) & (%j < %at))
      yield select(%better, %v, %best), select(%better, %j, %at)
    } combine (%lv, %li, %rv, %ri) {
      let %left: bool = (%lv > %rv) | ((%lv == %rv) & (%li < %ri))
      yield select(%left, %lv, %rv), select(%left, %li, %ri)
    } -> %value, %index
    store %y[%i] = %index
  }
})";
  for (int64_t n : {1, 3, 8, 16, 17, 50}) {
    expect_as_interpreted(text, {9, n}, {.specials = false});
    expect_as_interpreted(text, {9, n}, {.specials = false, .ranges = {{"x", {0, 2}}}});
  }
}

TEST(Reduce, online_softmax) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %y: out f32[%m, %n]) {
  for %i in 0..%m parallel {
    reduce %j in 0..%n vector(16) unroll(2) (%top: f32 = -inf, %sum: f32 = 0.0) {
      let %v: f32 = %x[%i, %j]
      let %next: f32 = max(%top, %v)
      let %scale: f32 = select(%top == -inf, 0.0, exp(%top - %next))
      yield %next, %sum * %scale + exp(%v - %next)
    } combine (%lt, %ls, %rt, %rs) {
      let %t: f32 = max(%lt, %rt)
      let %a: f32 = select(%lt == -inf, 0.0, %ls * exp(%lt - %t))
      let %b: f32 = select(%rt == -inf, 0.0, %rs * exp(%rt - %t))
      yield %t, %a + %b
    } -> %high, %total
    for %k in 0..%n vector(16) { store %y[%i, %k] = div(exp(%x[%i, %k] - %high), %total) }
  }
})";
  for (int64_t n : {1, 15, 16, 33, 100})
    expect_as_interpreted(text, {5, n}, {.relative = 1e-5, .specials = false});
}

TEST(Reduce, any_and_all) {
  const char* text = R"(
kernel @k(%n: i64; %x: in bool[%n], %y: out bool[2]) {
  reduce %i in 0..%n vector(16) unroll(2) (%a: bool = false, %b: bool = true) { yield %a | %x[%i], %b & %x[%i] }
    combine (%la, %lb, %ra, %rb) { yield %la | %ra, %lb & %rb } -> %any, %all
  store %y[0] = %any
  store %y[1] = %all
})";
  for (int64_t n : {0, 1, 5, 16, 40})
    for (int64_t low : {0, 1})
      for (int64_t high : {low, int64_t{1}})
        expect_as_interpreted(text, {n}, {.ranges = {{"x", {low, high}}}});
}

TEST(Reduce, stores_and_branches_in_the_body) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %e: inout f32[%n], %y: out f32[2]) {
  reduce %i in 0..%n vector(8) unroll(2) (%a: f32 = 0.0, %c: f32 = 0.0) {
    let %v: f32 = %x[%i] * 2.0
    store %e[%i] = %v
    if %v > 1.0 { store %e[%i] = 1.0 }
    yield %a + %v, %c + select(%v > 1.0, 1.0, 0.0)
  } combine (%la, %lc, %ra, %rc) { yield %la + %ra, %lc + %rc } -> %s, %count
  store %y[0] = %s
  store %y[1] = %count
})";
  for (int64_t n : {0, 5, 16, 45})
    expect_as_interpreted(text, {n}, {.relative = 1e-5, .specials = false});
}

// Without a combine the order is that of the loop; unroll copies the body.
TEST(Reduce, serial_in_order) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %y: out f32[%n], %z: out f32[1]) {
  reduce %i in 0..%n unroll(3) (%a: f32 = 0.0) {
    let %next: f32 = %a * 0.5 + %x[%i]
    store %y[%i] = %next
    yield %next
  } -> %last
  reduce %k in 1..5 unrolled (%b: f32 = %last) { yield %b * f32(%k) } -> %product
  store %z[0] = %product
})";
  for (int64_t n : {0, 1, 2, 3, 10}) expect_as_interpreted(text, {n});
}

// A reduce over rows inside a vector loop over columns, with a let between that all lanes share.
TEST(Reduce, nested_in_lanes_with_uniform_values) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in f32[%m, %n], %w: in f32[%m], %y: out f32[%n], %z: out f32[%n]) {
  for %j in 0..%n vector(16) unroll(2) {
    reduce %i in 0..%m (%a: f32 = 0.0, %total: f32 = 0.0) {
      let %weight: f32 = %w[%i] * %w[%i]
      yield %a + %x[%i, %j] * %weight, %total + %weight
    } -> %s, %t
    store %y[%j] = %s
    store %z[%j] = %t + %s
  }
})";
  for (int64_t n : {1, 16, 32, 47}) expect_as_interpreted(text, {7, n});
}

// ---- Scans

TEST(Scan, prefixes_of_every_length) {
  const char* text = R"(
kernel @k(%m: i64, %n: i64; %x: in $T[%m, %n], %y: out $T[%m, %n], %z: out $T[%m]) {
  for %i in 0..%m parallel {
    reduce %j in 0..%n scan($W) unroll($U) (%a: $T = $T($I)) {
      let %next: $T = $STEP
      store %y[%i, %j] = %next
      yield %next
    } combine (%l, %r) { yield $MERGE } -> %s
    store %z[%i] = %s
  }
})";
  const auto check = [&](const char* dtype, const char* identity, const char* step,
                         const char* merge) {
    for (int width : {1, 2, 8, 16})
      for (int unroll : {1, 3})
        for (int64_t n : {0, 1, 2, 7, 8, 9, 16, 23, 24, 40, 63, 64, 65, 200})
          expect_as_interpreted(substitute(text, {{"T", dtype},
                                                  {"I", identity},
                                                  {"STEP", step},
                                                  {"MERGE", merge},
                                                  {"W", std::to_string(width)},
                                                  {"U", std::to_string(unroll)}}),
                                {2, n}, {.relative = 1e-5, .specials = false});
  };
  check("i64", "0", "%a + %x[%i, %j]", "%l + %r");
  check("u8", "1", "%a * %x[%i, %j]", "%l * %r");
  check("f32", "0", "%a + %x[%i, %j]", "%l + %r");
  check("f64", "0", "%a + %x[%i, %j] * %x[%i, %j]", "%l + %r");
}

// Not commutative: the later of equal extremes, and what precedes a NaN does not come back.
TEST(Scan, places_of_extremes) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %v: out f32[%n], %p: out i64[%n]) {
  reduce %j in 0..%n scan($W) unroll(2) (%best: f32 = -inf, %at: i64 = 0) {
    let %e: f32 = floor(%x[%j])
    let %takes: bool = %e >= %best | isnan(%e)
    let %value: f32 = select(%takes, %e, %best)
    let %place: i64 = select(%takes, %j, %at)
    store %v[%j] = %value
    store %p[%j] = %place
    yield %value, %place
  } combine (%lv, %lp, %rv, %rp) {
    let %later: bool = %rv >= %lv | isnan(%rv)
    yield select(%later, %rv, %lv), select(%later, %rp, %lp)
  } -> %a, %b
})";
  for (const char* width : {"4", "8", "16"})
    for (int64_t n : {0, 1, 5, 16, 33, 100})
      expect_as_interpreted(substitute(text, {{"W", width}}), {n}, {.zero_sign = false});
}

TEST(Scan, constant_lengths_and_masks) {
  for (int n : {1, 8, 20, 32, 50, 100}) {
    const std::string text = substitute(R"(
kernel @k(%m: i64; %x: in f32[%m, $N], %y: out f32[%m, $N]) {
  for %i in 0..%m parallel {
    reduce %j in 0..$N scan(8) unroll(2) (%a: f64 = 0.0) {
      let %e: f64 = f64(load(%x[%i, %j - 1], %j > 0))
      let %next: f64 = %a + %e
      if %x[%i, %j] > 0.0 { store %y[%i, %j] = f32(%next) } else { store %y[%i, %j] = 0.0 }
      yield %next
    } combine (%l, %r) { yield %l + %r } -> %s
  }
})",
                                        {{"N", std::to_string(n)}});
    expect_as_interpreted(text, {3}, {.relative = 1e-5, .specials = false});
  }
}

// Eager's cascade: blocks of the row, each summed by lanes.
TEST(Reduce, blocks_of_lanes) {
  const char* text = R"(
kernel @k(%n: i64; %x: in f32[%n], %y: out f32[1]) {
  reduce %b in 0..floordiv(%n + 63, 64) (%a: f32 = 0.0) {
    reduce %i in %b * 64..min(%b * 64 + 64, %n) vector(16) unroll(2) (%c: f32 = 0.0) { yield %c + %x[%i] }
      combine (%l, %r) { yield %l + %r } -> %s
    yield %a + %s
  } -> %total
  store %y[0] = %total
})";
  for (int64_t n : {0, 1, 64, 100, 1000})
    expect_as_interpreted(text, {n}, {.relative = 1e-5, .specials = false});
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
