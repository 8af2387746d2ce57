#include <gtest/gtest.h>

#include <set>

#include "graph/attributes.h"
#include "graph/graph.h"

namespace mlcc::graph {
namespace {

std::set<std::string> words(std::string_view text) {
  std::set<std::string> result;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    const bool is_new = space == 0 || result.insert(std::string(text.substr(0, space))).second;
    EXPECT_TRUE(is_new) << text;
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return result;
}

TEST(Ops, names_are_read_back) {
  for (const OpInfo& info : all_ops()) {
    EXPECT_EQ(parse_op(info.text), info.op) << info.text;
    EXPECT_EQ(&op_info(info.op), &info);
  }
  EXPECT_EQ(parse_op("frobnicate"), std::nullopt);
}

TEST(Ops, pointwise_rows_are_complete) {
  for (const OpInfo& info : all_ops()) {
    if (info.arity < 0) {
      EXPECT_FALSE(info.meaning.empty()) << info.text;
      continue;
    }
    EXPECT_EQ(info.op_class, OpClass::kPointwise) << info.text;
    EXPECT_GE(info.arity, 1) << info.text;
    EXPECT_FALSE(info.formula.empty()) << info.text;
    EXPECT_TRUE(attr_specs(info.op).empty()) << info.text;
  }
}

TEST(Ops, an_overload_of_several_rows_means_another_dtype_in_each) {
  for (const OpInfo& first : all_ops())
    for (const OpInfo& second : all_ops()) {
      if (second.op <= first.op) continue;
      for (const std::string& overload : words(first.aten)) {
        if (!words(second.aten).contains(overload)) continue;
        bool adds_dtype = false;
        for (int i = 0; i < kNumDTypes; ++i) {
          const auto dtype = static_cast<DType>(i);
          adds_dtype |= holds(second.domain, dtype) && !holds(first.domain, dtype);
        }
        EXPECT_TRUE(adds_dtype) << overload << " in " << first.text << " and " << second.text;
      }
    }
}

TEST(Ops, domains) {
  EXPECT_TRUE(holds(DTypeDomain::kAny, DType::kBool));
  EXPECT_TRUE(holds(DTypeDomain::kNumber, DType::kU8));
  EXPECT_FALSE(holds(DTypeDomain::kNumber, DType::kBool));
  EXPECT_TRUE(holds(DTypeDomain::kFloat, DType::kBF16));
  EXPECT_FALSE(holds(DTypeDomain::kFloat, DType::kI64));
  EXPECT_TRUE(holds(DTypeDomain::kIntegral, DType::kBool));
  EXPECT_FALSE(holds(DTypeDomain::kInteger, DType::kBool));
  EXPECT_FALSE(holds(DTypeDomain::kBool, DType::kU8));
}

TEST(Ops, attributes_are_sorted_by_name) {
  for (const OpInfo& info : all_ops()) {
    const auto specs = attr_specs(info.op);
    for (size_t i = 1; i < specs.size(); ++i) EXPECT_LT(specs[i - 1].name, specs[i].name);
  }
}

}  // namespace
}  // namespace mlcc::graph
