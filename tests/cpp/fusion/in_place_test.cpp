#include "fusion/in_place.h"

#include <gtest/gtest.h>

#include <string>

#include "graph/text.h"

namespace mlcc::fusion {
namespace {

// "input <- %id in group" for each write found.
std::string writes(const std::string& text, const FusionOptions& options = {}) {
  const auto graph = graph::parse_graph(text);
  const FusionPlan plan = plan_fusion(*graph, options);
  std::string found;
  for (const InPlaceWrite& write : find_in_place_writes(*graph, plan))
    found += write.input->name() + " <- " +
             graph::op_info(write.result->producer()->op()).text.data() + " in " +
             std::to_string(write.group) + "; ";
  return found;
}

// The exponential is written into x where kernels run in turn, not where small ones run together.
void expect_only_in_turn(const std::string& text) {
  FusionOptions options;
  EXPECT_EQ(writes(text, options), "x <- exp in 1; ");
  options.waves = {100, 1000};
  EXPECT_EQ(writes(text, options), "");
}

TEST(InPlace, TheKernelThatComputesWhatIsCopied) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8], %y: f32[8]) {
  %0: f32[8] = add %x, %y
  %1: f32[8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return
})"),
            "x <- add in 0; ");
}

TEST(InPlace, AnUpdateAndItsReaders) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 4], %i: i64[2], %y: f32[2, 4]) {
  %0: f32[8, 4] = index_put %x, %i, %y {dim = 0, combine = "add", ordered = false, wrap = false, error = "index_add"}
  %1: f32[8] = sum %0 {dims = [1], keepdim = false}
  %2: f32[8, 4] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return %1
})"),
            "x <- index_put in 0; ");
}

TEST(InPlace, NotWhatALaterKernelReads) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = add %x, %y
  %1: f32[8, 8] = extern "aten.mm.default"(%0, %y)
  %2: f32[8, 8] = mul %1, %x
  %3: f32[8, 8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return %2
})"),
            "");
}

TEST(InPlace, NotWhatIsReturnedAsAView) {
  for (const char* view : {"permute %0 {dims = [1, 0]}", "slice %0 {dim = 0, start = 2, step = 1}",
                           "extern \"aten.view_as_real.default\"(%0) aliases"}) {
    const std::string shape = std::string(view).starts_with("slice") ? "6, 8" : "8, 8";
    EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = add %x, %y
  %1: f32[8, 8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  %2: f32[)" + shape +
                     "] = " + view + R"(
  return %2
})"),
              "")
        << view;
  }
}

TEST(InPlace, AViewOfTheInputIsReturned) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 8], %y: f32[8, 8]) {
  %0: f32[8, 8] = add %x, %y
  %1: f32[8, 8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  %2: f32[8] = extern "aten.diagonal.default"(%x) aliases
  %3: f32[8, 8] = permute %x {dims = [1, 0]}
  return %1, %2, %3
})"),
            "x <- add in 0; ");
}

TEST(InPlace, NotWhatAKernelReadsAtTheSameTime) {
  expect_only_in_turn(R"(graph @g(%x: f32[8], %y: f32[4]) {
  %0: f32[4] = slice %x {dim = 0, start = 2, step = 1}
  %1: f32[4] = add %0, %y
  %2: f32[8] = exp %x
  %3: f32[8] = extern "aten.copy_.default"(%x, %2) mutates(0) aliases
  return %1
})");
}

TEST(InPlace, NotBesideAKernelThatMayFail) {
  expect_only_in_turn(R"(graph @g(%x: f32[8], %y: f32[16], %i: i64[4]) {
  %0: f32[4] = take %y, %i {dim = 0, wrap = false, error = "index"}
  %1: f32[8] = exp %x
  %2: f32[8] = extern "aten.copy_.default"(%x, %1) mutates(0) aliases
  return %0
})");
}

// As keys and values are written to their caches.
TEST(InPlace, UpdatesThatMayFailRunInTurn) {
  FusionOptions options;
  options.waves = {100, 1000};
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 4], %y: f32[8, 4], %i: i64[1], %z: f32[1, 4]) {
  %0: f32[8, 4] = index_put %x, %i, %z {dim = 0, combine = "set", ordered = false, wrap = false, error = "index_copy"}
  %1: f32[8, 4] = index_put %y, %i, %z {dim = 0, combine = "set", ordered = false, wrap = false, error = "index_copy"}
  %2: f32[8, 4] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  %3: f32[8, 4] = extern "aten.copy_.default"(%y, %1) mutates(0) aliases
  return
})",
                   options),
            "x <- index_put in 0; y <- index_put in 1; ");
}

TEST(InPlace, NotWhereItOvertakesWhatMayFail) {
  expect_only_in_turn(R"(graph @g(%x: f32[8], %y: f32[16], %z: f32[8]) {
  %0: f32[8] = exp %z
  %1: f32[8] = extern "my.picky.default"(%0)
  %2: f32[8] = exp %x
  %3: f32[8] = extern "aten.copy_.default"(%x, %2) mutates(0) aliases
  return %1
})");
}

TEST(InPlace, NotWhatALaterCallReads) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 8]) {
  %0: f32[8, 8] = exp %x
  %1: f32[8, 8] = extern "aten.mm.default"(%0, %x)
  %2: f32[8, 8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return %1
})"),
            "");
}

TEST(InPlace, NotWhatACallMayHaveReturned) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8]) {
  %0: f32[8] = extern "aten.as_strided.default"(%x, [8], [1]) aliases
  %1: f32[8] = exp %0
  %2: f32[8] = extern "aten.copy_.default"(%x, %1) mutates(0) aliases
  return %0
})"),
            "");
}

TEST(InPlace, NotWhatLiesOtherwise) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8, 4] strides(1, 8), %y: f32[8, 4]) {
  %0: f32[8, 4] = add %x, %y
  %1: f32[8, 4] strides(1, 8) = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return
})"),
            "");
}

TEST(InPlace, NotAnOutput) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8]) {
  %0: f32[8] = exp %x
  %1: f32[8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  return %0
})"),
            "");
}

TEST(InPlace, OneInputOnce) {
  EXPECT_EQ(writes(R"(graph @g(%x: f32[8]) {
  %0: f32[8] = exp %x
  %1: f32[8] = extern "aten.copy_.default"(%x, %0) mutates(0) aliases
  %2: f32[8] = log %0
  %3: f32[8] = extern "aten.copy_.default"(%x, %2) mutates(0) aliases
  return
})"),
            "");
}

}  // namespace
}  // namespace mlcc::fusion
