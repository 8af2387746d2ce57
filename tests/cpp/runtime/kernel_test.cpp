#include "runtime/kernel.h"

#include <gtest/gtest.h>

namespace mlcc::runtime {
namespace {

TEST(FillIn, PutsDetailsIntoTexts) {
  EXPECT_EQ(fill_in("index {0} of {1}", {-4, 7}), "index -4 of 7");
  EXPECT_EQ(fill_in("size {1}", {-4, 7}), "size 7");
  EXPECT_EQ(fill_in("{} {2} {", {-4, 7}), "{} {2} {");
}

}  // namespace
}  // namespace mlcc::runtime
