#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/cpu/client.h"
#include "harness.h"
#include "tile_machine.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr const char* kTile = R"(
kernel @k(%k: i64, %live: i64; %a: in $A[$ASIZE], %b: in $B[$BSIZE], %y: inout $C[$M, $N]) {
  alloc %c: stack $C[$M, $N]
  for %i in 0..$M { for %j in 0..$N { store %c[%i, %j] = %y[%i, %j] } }
  contract %c[0, 0] by ($N, 1) $SIGN %a[0] by ($ASTEPS) * %b[0] by ($BSTEPS) tile($M, $N) $LIVE depth($DEPTHS)
  for %p in 0..$M { for %q in 0..$WIDTH { store %y[%p, %q] = %c[%p, %q] } }
})";

// How A and B lie in memory.
struct Layout {
  const char* a_size;
  const char* a_steps;
  const char* b_size;
  const char* b_steps;
  const char* depths;
};

constexpr Layout kRows = {"$M * %k", "%k, 1", "%k * $N", "1, $N", "%k"};
constexpr Layout kTransposedA = {"%k * $M", "1, $M", "%k * $N", "1, $N", "%k"};
constexpr Layout kTransposedB = {"$M * %k", "%k, 1", "$N * %k", "%k, 1", "%k"};
constexpr Layout kKnownSteps = {"$M * 16 + %k", "16, 1", "%k * 96 + $N", "1, 96", "%k"};
constexpr Layout kThreeAxes = {"$M * %k * 6", "%k * 6, 6, 3, 1", "%k * 6 * $N",
                               "1, 6 * $N, 3 * $N, $N", "%k, 2, 3"};
constexpr Layout kPairs = {"$M * %k * 2", "%k * 2, 2, 1", "%k * 2 * $N", "2, 2 * $N, 1", "%k, 2"};
constexpr Layout kQuads = {"$M * %k * 4", "%k * 4, 4, 1", "%k * 4 * $N", "4, 4 * $N, 1", "%k, 4"};
constexpr Layout kPairsOfAxes = {"$M * %k * 6", "%k * 6, %k * 2, 2, 1", "%k * 6 * $N",
                                 "2, %k * 2 * $N, 2 * $N, 1", "3, %k, 2"};
constexpr Layout kOneWord = {"$M * 4 + %k", "4, 1", "4 * $N", "4, 1", "4"};

struct Dtypes {
  const char* a;
  const char* b;
  const char* c;
};

struct Shape {
  int rows, columns;
  int live = 0;  // 0: no such operand
  bool adds = true;
};

// Small whole numbers, whose sums are exact in any order.
void expect_tile(const Dtypes& dtypes, const Shape& shape, const Layout& layout, int64_t depth) {
  std::string text = substitute(kTile, {{"ASIZE", layout.a_size},
                                        {"BSIZE", layout.b_size},
                                        {"ASTEPS", layout.a_steps},
                                        {"BSTEPS", layout.b_steps},
                                        {"DEPTHS", layout.depths},
                                        {"SIGN", shape.adds ? "+=" : "="},
                                        {"WIDTH", shape.live == 0 ? "$N" : "%live"},
                                        {"LIVE", shape.live == 0 ? "" : "live(%live)"}});
  text = substitute(text, {{"A", dtypes.a},
                           {"B", dtypes.b},
                           {"C", dtypes.c},
                           {"M", std::to_string(shape.rows)},
                           {"N", std::to_string(shape.columns)}});
  Comparison how{.zero_sign = false, .specials = false};
  how.ranges["a"] = std::string(dtypes.a) == "u8" ? IntRange{0, 255} : IntRange{-128, 127};
  how.ranges["b"] = std::string(dtypes.b) == "u8" ? IntRange{0, 255} : IntRange{-128, 127};
  if (dtypes.a[0] == 'i' && std::string(dtypes.a) != "i8") how.ranges["a"] = {-32768, 32767};
  if (dtypes.b[0] == 'i' && std::string(dtypes.b) != "i8") how.ranges["b"] = {-32768, 32767};
  SCOPED_TRACE(text);
  expect_as_interpreted(text, {depth, std::max(shape.live, 1)}, how);
}

// Two columns in a byte of B, words of four terms or single ones.
constexpr const char* kHalves = R"(
kernel @k(%k: i64; %a: in $A[$M * %k * 4], %b: in u8[%k * 4 * $LOW], %y: inout i32[$M, $N]) {
  alloc %c: stack i32[$M, $N]
  contract %c[0, 0] by ($N, 1) = %a[0] by (%k * 4, 4, 1) * %b[0] by ($BSTEPS) halves $LOW tile($M, $N) depth(%k, 4)
  for %p in 0..$M { for %q in 0..$N { store %y[%p, %q] = %c[%p, %q] } }
})";

void expect_halves(const char* a, int rows, int columns, int low, const char* steps) {
  const std::string text =
      substitute(substitute(kHalves, {{"BSTEPS", steps}}), {{"A", a},
                                                            {"M", std::to_string(rows)},
                                                            {"N", std::to_string(columns)},
                                                            {"LOW", std::to_string(low)}});
  Comparison how{.zero_sign = false, .specials = false};
  how.ranges["a"] = std::string(a) == "u8" ? IntRange{0, 255} : IntRange{-128, 127};
  how.ranges["b"] = {0, 255};
  SCOPED_TRACE(text);
  for (const int64_t depth : {0, 1, 8, 13}) expect_as_interpreted(text, {depth}, how);
}

constexpr Dtypes kF32 = {"f32", "f32", "f32"};

TEST(Contract, tiles_and_layouts) {
  for (const Layout& layout : {kRows, kTransposedA, kTransposedB, kKnownSteps, kThreeAxes})
    for (auto [rows, columns] : {std::pair{1, 1}, {6, 32}, {4, 16}, {3, 21}, {14, 32}, {2, 7}})
      for (int64_t depth : {0, 1, 9})
        expect_tile(kF32, {rows, columns, 0, depth != 9}, layout, depth);
}

TEST(Contract, two_columns_in_a_byte) {
  for (const char* a : {"i8", "u8"}) {
    for (const int rows : {1, 2, 5, 12, 14}) expect_halves(a, rows, 32, 16, "4, 4 * $LOW, 1");
    expect_halves(a, 3, 16, 16, "4, 4 * $LOW, 1");
    expect_halves(a, 3, 64, 32, "4, 4 * $LOW, 1");
    expect_halves(a, 3, 32, 16, "1, 4 * $LOW, $LOW");
    expect_halves(a, 3, 32, 16, "%k * 4, 4, 1");
  }
}

TEST(Contract, rows) {
  for (int rows = 1; rows <= 14; ++rows) {
    expect_tile(kF32, {rows, 32}, kRows, 13);
    expect_tile(kF32, {rows, 32, 19}, kRows, 6);
  }
}

TEST(Contract, live_columns) {
  for (int live = 1; live <= 32; ++live) {
    expect_tile(kF32, {5, 32, live}, kRows, 5);
    expect_tile({"bf16", "bf16", "f32"}, {3, 32, live}, kPairs, 3);
    expect_tile({"u8", "i8", "i32"}, {3, 32, live}, kQuads, 3);
    expect_tile({"f32", "f16", "f32"}, {2, 32, live}, kRows, 3);
  }
  for (int live : {1, 8, 17, 40, 90}) expect_tile(kF32, {2, 90, live}, kRows, 3);
  for (int live : {1, 3, 8, 12}) {
    expect_tile({"f64", "f64", "f64"}, {3, 12, live, false}, kRows, 3);
    expect_tile(kF32, {3, 12, live, false}, kTransposedB, 3);
    expect_tile({"i8", "i8", "i32"}, {3, 12, live, false}, kRows, 3);
    expect_tile({"i64", "i64", "i64"}, {3, 12, live, false}, kRows, 3);
  }
}

TEST(Contract, float_dtypes) {
  for (const Dtypes& dtypes : {Dtypes{"bf16", "bf16", "f32"},
                               {"f16", "f16", "f32"},
                               {"f32", "bf16", "f32"},
                               {"bf16", "f32", "f32"},
                               {"f32", "f16", "f32"},
                               {"f16", "bf16", "f32"},
                               {"f64", "f64", "f64"}})
    for (const Layout& layout : {kRows, kTransposedB, kPairs, kQuads})
      for (const Shape& shape : {Shape{1, 48}, {7, 32}, {3, 21, 18}})
        expect_tile(dtypes, shape, layout, 11);
}

TEST(Contract, integer_dtypes) {
  for (const char* a : {"u8", "i8", "i16", "i32"})
    for (const char* b : {"u8", "i8", "i16", "i32"})
      for (const Layout& layout : {kRows, kPairs, kQuads})
        for (const Shape& shape : {Shape{1, 48}, {7, 32}, {3, 21, 18}})
          expect_tile({a, b, "i32"}, shape, layout, 5);
  expect_tile({"i64", "i64", "i64"}, {3, 20}, kRows, 5);
}

bool has_tiles(const Backend& backend) {
  return backend.target().features.find("+amx-tile") != std::string::npos;
}

// Tile registers hold 16 words of depth.
TEST(Contract, many_words) {
  const int64_t before = count_tile_products();
  for (const Shape& shape : {Shape{1, 32},
                             {12, 32},
                             {16, 16, 0, false},
                             {17, 48},
                             {33, 40},
                             {48, 48, 0, false},  // two registers of rows, then of columns
                             {5, 7},
                             {3, 40, 33},
                             {3, 32, 32, false}})
    for (int64_t depth : {16, 17, 47}) {
      expect_tile({"bf16", "bf16", "f32"}, shape, kPairs, depth);
      expect_tile({"u8", "i8", "i32"}, shape, kQuads, depth);
    }
  for (const char* a : {"u8", "i8"})
    for (const char* b : {"u8", "i8"}) expect_tile({a, b, "i32"}, {12, 32}, kQuads, 40);
  for (int64_t depth : {0, 15, 16, 33})
    expect_tile({"bf16", "bf16", "f32"}, {12, 32}, kPairsOfAxes, depth);
  const bool has_any = std::any_of(backends().begin(), backends().end(),
                                   [](const auto& backend) { return has_tiles(*backend); });
  // Where the machine has them, nothing is carried out in software.
  const auto host = open_cpu_backend(MLCC_LLVM_LIBRARY, "");
  EXPECT_EQ(count_tile_products() > before, has_any && !has_tiles(**host));
}

TEST(Contract, depth_of_one_word) {
  expect_tile({"u8", "i8", "i32"}, {5, 32}, kOneWord, 1);
  expect_tile({"i8", "i8", "i32"}, {2, 40, 33}, kOneWord, 1);
  expect_tile(kF32, {5, 32}, kOneWord, 1);
}

// What lies between the columns counts nothing, and nothing behind the last one is read.
TEST(Contract, depth_of_a_part_of_a_word) {
  const std::vector<Dtypes> bytes = {
      {"u8", "i8", "i32"}, {"i8", "i8", "i32"}, {"u8", "u8", "i32"}, {"i8", "u8", "i32"}};
  for (const char* terms : {"1", "2", "3"}) {
    const std::string b_size = std::string("4 * $N - 4 + ") + terms;
    const std::string depths = std::string("1, ") + terms;
    const Layout quads = {"$M * 4 + %k", "4, 4, 1", b_size.c_str(), "4, 4, 1", depths.c_str()};
    for (const Dtypes& dtypes : bytes)
      for (const Shape& shape : {Shape{1, 32}, {7, 32}, {3, 21}, {2, 32, 18}})
        expect_tile(dtypes, shape, quads, 1);
  }
  const Layout pairs = {"$M * 3 + %k", "3, 2, 1", "2 * $N - 1", "2, 2, 1", "1, 1"};
  for (const Dtypes& dtypes : {Dtypes{"bf16", "bf16", "f32"},
                               {"f16", "f16", "f32"},
                               {"bf16", "f16", "f32"},
                               {"i16", "i16", "i32"}})
    for (const Shape& shape : {Shape{1, 32}, {7, 32}, {3, 21}, {2, 32, 18}})
      expect_tile(dtypes, shape, pairs, 1);
}

TEST(Contract, more_sums_than_registers) {
  expect_tile(kF32, {40, 40}, kRows, 5);
  expect_tile(kF32, {13, 100, 77, false}, kRows, 5);
  expect_tile({"i8", "i8", "i32"}, {17, 64, 50}, kQuads, 2);
  expect_tile({"u8", "u8", "i32"}, {17, 31}, kQuads, 2);
}

TEST(Contract, negative_depths_are_empty) {
  std::string text = R"(
kernel @k(%k: i64; %a: in f32[8], %b: in f32[64], %y: out f32[4, 16]) {
  alloc %c: register f32[4, 16]
  contract %c[0, 0] by (16, 1) = %a[0] by (1, 1, 1) * %b[0] by (1, 1, 1) tile(4, 16) depth(3, %k)
  for %p in 0..4 { for %q in 0..16 { store %y[%p, %q] = %c[%p, %q] } }
})";
  expect_as_interpreted(text, {-3});
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
