#include <gtest/gtest.h>

#include "harness.h"

namespace mlcc::codegen::cpu::testing {
namespace {

constexpr const char* kTile = R"(
kernel @k(%k: i64; %a: in $A[$ASHAPE], %b: in $B[$BSHAPE], %y: inout $C[$M, $N]) {
  alloc %c: register $C[$M, $N]
  for %i in 0..$M { for %j in 0..$N { store %c[%i, %j] = %y[%i, %j] } }
  contract %c[0, 0][0, 1] += %a[0, 0][$ADIMS] * %b[0, 0][$BDIMS] tile($M, $N, %k)
  for %p in 0..$M { for %q in 0..$N { store %y[%p, %q] = %c[%p, %q] } }
})";

struct Layout {
  const char* a_shape;
  const char* a_dims;
  const char* b_shape;
  const char* b_dims;
};

const Layout kLayouts[] = {{"$M, %k", "0, 1", "%k, $N", "0, 1"},
                           {"%k, $M", "1, 0", "%k, $N", "0, 1"},
                           {"$M, %k", "0, 1", "$N, %k", "1, 0"}};

void expect_tile(const char* a, const char* b, const char* c, int rows, int columns,
                 const Layout& layout, int64_t depth) {
  std::string text = substitute(kTile, {{"ASHAPE", layout.a_shape},
                                        {"BSHAPE", layout.b_shape},
                                        {"ADIMS", layout.a_dims},
                                        {"BDIMS", layout.b_dims}});
  text = substitute(
      text,
      {{"A", a}, {"B", b}, {"C", c}, {"M", std::to_string(rows)}, {"N", std::to_string(columns)}});
  expect_as_interpreted(text, {depth}, {.specials = false, .needs_fma = std::string(c) == "f64"});
}

TEST(Contract, tiles_and_layouts) {
  for (const Layout& layout : kLayouts)
    for (auto [rows, columns] : {std::pair{1, 1}, {6, 32}, {4, 16}, {3, 21}, {14, 32}, {2, 7}})
      for (int64_t depth : {0, 1, 9})
        expect_tile("f32", "f32", "f32", rows, columns, layout, depth);
}

TEST(Contract, dtypes) {
  for (const Layout& layout : kLayouts) {
    expect_tile("bf16", "bf16", "f32", 3, 20, layout, 11);
    expect_tile("f16", "f32", "f32", 3, 20, layout, 11);
    expect_tile("u8", "i8", "i32", 3, 20, layout, 11);
    expect_tile("f64", "f64", "f64", 3, 10, layout, 11);
  }
}

TEST(Contract, many_accumulators_become_loops) {
  expect_tile("f32", "f32", "f32", 40, 40, kLayouts[0], 5);
}

}  // namespace
}  // namespace mlcc::codegen::cpu::testing
