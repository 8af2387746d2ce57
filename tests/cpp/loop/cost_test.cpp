#include "loop/cost.h"

#include <gtest/gtest.h>

#include "loop/text.h"

namespace mlcc::loop {
namespace {

TEST(Cost, CountsWhatIsComputed) {
  Arena arena;
  const Kernel kernel = parse_kernel(arena, R"(
kernel @k(%n: i64; %x: in f32[%n, %n], %y: out f32[%n]) {
  for %i in 0..%n parallel {
    reduce %j in 0..%n (%a: f32 = 0.0) {
      let %e: f32 = exp(%x[%i, %n - 1 - %j]) * 2.0
      yield %a + %e
    } -> %s
    store %y[%i] = f32(f64(%s)) + 1.0
  }
})");
  EXPECT_EQ(ops_of(kernel.phases.front()), (kFunctionOps + 1) + 1 + 3);
}

// Each expression below is the sum of the one before with itself: written out it has 2^60 ops.
TEST(Cost, CountsWhatIsSharedOnce) {
  Arena arena;
  Expr e = Variable::make(arena, DType::kF32, "x");
  for (int i = 0; i < 60; ++i) e = apply(arena, ScalarOp::kAdd, {e, e});
  EXPECT_EQ(ops_of(e), 60);
}

}  // namespace
}  // namespace mlcc::loop
