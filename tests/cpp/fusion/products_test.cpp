#include "fusion/products.h"

#include <gtest/gtest.h>

#include <string>

#include "fusion/fusion.h"
#include "graph/text.h"

namespace mlcc::fusion {
namespace {

// Nodes of each group of a graph of two products; `between` and `second` are its lines.
std::vector<size_t> sizes_of_groups(const std::string& inputs, const std::string& lines,
                                    const FusionOptions& options = {}) {
  const auto graph = graph::parse_graph("graph @g(" + inputs + ") {\n" + lines + "\n}");
  std::vector<size_t> sizes;
  for (const Group& group : plan_fusion(*graph, options).groups)
    sizes.push_back(group.nodes.size());
  return sizes;
}

using Sizes = std::vector<size_t>;

constexpr const char* kInputs =
    "%x: f32[4, 64], %v: f32[2, 64, 32], %w: f32[2, 64, 32], %u: f32[3, 64, 32]";
constexpr const char* kForm =
    "{lhs = [d0, d2], reduced = [64], rhs = [floordiv(d1, 32), d2, mod(d1, 32)]}\n";

std::string product(const char* result, const char* rows, const char* columns, int width = 64) {
  return std::string("  ") + result + ": f32[4, " + std::to_string(width) + "] = contract " + rows +
         ", " + columns + " " + kForm;
}

TEST(Products, TheSameRowsAreOneKernel) {
  const std::string lines = product("%0", "%x", "%v") + "  %1: f32[4, 64] = relu %0\n" +
                            product("%2", "%x", "%w") + "  return %1, %2";
  EXPECT_EQ(sizes_of_groups(kInputs, lines), (Sizes{3}));
  FusionOptions apart;
  apart.max_products = 1;
  EXPECT_EQ(sizes_of_groups(kInputs, lines, apart), (Sizes{2, 1}));
  FusionOptions unfused;
  unfused.fuse = false;
  EXPECT_EQ(sizes_of_groups(kInputs, lines, unfused), (Sizes{1, 1, 1}));
}

TEST(Products, WhatReadsBothJoins) {
  EXPECT_EQ(sizes_of_groups(kInputs, product("%0", "%x", "%v") + "  %1: f32[4, 64] = sigmoid %0\n" +
                                         product("%2", "%x", "%w") +
                                         "  %3: f32[4, 64] = mul %1, %2\n  return %3"),
            (Sizes{3}));
}

TEST(Products, OtherWidthsAreKernelsOfTheirOwn) {
  EXPECT_EQ(sizes_of_groups(kInputs, product("%0", "%x", "%v") + product("%1", "%x", "%u", 96) +
                                         product("%2", "%x", "%w") + "  return %0, %1, %2"),
            (Sizes{2, 1}));
}

TEST(Products, AProductOfTheOthersResultDoesNotJoin) {
  EXPECT_EQ(sizes_of_groups(kInputs,
                            product("%0", "%x", "%v") + product("%1", "%0", "%w") + "  return %1"),
            (Sizes{1, 1}));
}

// Behind products of other rows values would wait for readers that are far away.
TEST(Products, DistantOnesStayApart) {
  EXPECT_EQ(sizes_of_groups(kInputs, product("%0", "%x", "%v") + product("%1", "%0", "%v") +
                                         product("%2", "%x", "%w") + "  return %1, %2"),
            (Sizes{1, 1, 1}));
}

TEST(Products, MatricesThatChangeStayApart) {
  const std::string copied = "  %0: f32[2, 64, 32] = neg %w\n" + product("%1", "%x", "%v") +
                             product("%2", "%x", "%0") + "  return %1, %2";
  EXPECT_EQ(sizes_of_groups(kInputs, copied), (Sizes{1, 1, 1}));
  const std::string unpacked =
      "  %0: f32[4, 64] = contract %x, %v {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}\n"
      "  %1: f32[4, 64] = contract %x, %w {lhs = [d0, d2], reduced = [64], rhs = [d2, d1]}\n"
      "  return %0, %1";
  EXPECT_EQ(sizes_of_groups("%x: f32[4, 64], %v: f32[64, 64], %w: f32[64, 64]", unpacked),
            (Sizes{1, 1}));
}

// The gate follows its product in one kernel, which needs what the other product leads to.
TEST(Products, AGateOfWhatTheOtherOneLeadsTo) {
  const std::string rest = "  %2: f32[4, 64] = extern \"aten.erfinv.default\"(%0)\n"
                           "  %3: f32[4, 64] = mul %1, %2\n"
                           "  return %3";
  EXPECT_EQ(sizes_of_groups(kInputs, product("%0", "%x", "%v") + product("%1", "%x", "%w") + rest),
            (Sizes{1, 2}));
}

TEST(Products, AtMostThree) {
  EXPECT_EQ(sizes_of_groups("%x: f32[4, 64], %a: f32[2, 64, 32], %b: f32[2, 64, 32], "
                            "%c: f32[2, 64, 32], %d: f32[2, 64, 32]",
                            product("%0", "%x", "%a") + product("%1", "%x", "%b") +
                                product("%2", "%x", "%c") + product("%3", "%x", "%d") +
                                "  return %0, %1, %2, %3"),
            (Sizes{3, 1}));
}

TEST(Products, OfManyRowsThoseThatMeet) {
  const std::string both = product("%0", "%x", "%v") + product("%1", "%x", "%w");
  for (const bool do_meet : {false, true}) {
    std::string lines =
        both + (do_meet ? "  %2: f32[4, 64] = mul %0, %1\n  return %2" : "  return %0, %1");
    for (size_t at = 0; (at = lines.find("f32[4,", at)) != std::string::npos;)
      lines.replace(at, 6, "f32[512,");
    EXPECT_EQ(sizes_of_groups("%x: f32[512, 64], %v: f32[2, 64, 32], %w: f32[2, 64, 32]", lines),
              do_meet ? Sizes{3} : (Sizes{1, 1}));
  }
}

// Rows that a call writes in between are other rows.
TEST(Products, RowsThatAreWrittenBetween) {
  const std::string copy = "  extern \"aten.copy_.default\"(%x, %0) mutates(0)\n";
  EXPECT_EQ(sizes_of_groups(kInputs, product("%0", "%x", "%v") + copy + product("%2", "%x", "%w") +
                                         "  return %2"),
            (Sizes{1, 1}));
}

}  // namespace
}  // namespace mlcc::fusion
