#include "loop/mutator.h"

#include <gtest/gtest.h>

#include "loop/text.h"

namespace mlcc::loop {
namespace {

TEST(Mutator, CopiesBindVariablesOfTheirOwn) {
  Arena arena;
  Kernel kernel = parse_kernel(arena, R"(
kernel @k(%n: i64; %x: in f32[%n], %y: out f32[%n]) {
  for %i in 0..%n {
    let %a: f32 = %x[%i] + 1.0
    reduce %j in 0..%n vector(8) (%b: f32 = %a) { yield %b * %x[%j] }
      combine (%l, %r) { yield %l * %r } -> %s
    store %y[%i] = %s
  }
})");
  Block& body = kernel.phases.front();
  const Block copy = copy_of(arena, body);
  const std::string text = print(copy.front());
  body.insert(body.end(), copy.begin(), copy.end());
  EXPECT_NO_THROW(verify(kernel));
  EXPECT_NE(text, print(body.front()));
  kernel.phases.front() = copy;
  Kernel first = parse_kernel(arena, print(kernel));
  kernel.phases.front() = {body.front()};
  EXPECT_EQ(print(canonicalize(arena, first)), print(canonicalize(arena, kernel)));
}

}  // namespace
}  // namespace mlcc::loop
