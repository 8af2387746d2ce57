#include "types/dtype.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace mlcc {
namespace {

DType dtype_at(int i) { return static_cast<DType>(i); }

TEST(DType, names_are_read_back_and_differ) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumDTypes; ++i) {
    EXPECT_EQ(parse_dtype(dtype_name(dtype_at(i))), dtype_at(i));
    names.insert(dtype_name(dtype_at(i)));
  }
  EXPECT_EQ(names.size(), static_cast<size_t>(kNumDTypes));
  EXPECT_EQ(parse_dtype("bf16"), DType::kBF16);
  EXPECT_EQ(parse_dtype("float32"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
}

TEST(DType, sizes_follow_from_the_names) {
  EXPECT_EQ(dtype_size(DType::kBool), 1);
  for (int i = 0; i < kNumDTypes; ++i) {
    const std::string name(dtype_name(dtype_at(i)));
    if (name == "bool") continue;
    const int bits = std::stoi(name.substr(name.find_first_of("123456789")));
    EXPECT_EQ(dtype_size(dtype_at(i)) * 8, bits) << name;
  }
}

TEST(DType, classes_do_not_overlap) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const DType dtype = dtype_at(i);
    const std::string name(dtype_name(dtype));
    const char first = name[0];
    if (is_foreign(dtype)) {
      EXPECT_FALSE(is_float(dtype) || is_integer(dtype) || is_signed_integer(dtype)) << name;
      continue;
    }
    EXPECT_EQ(is_float(dtype), first == 'f' || name == "bf16") << name;
    EXPECT_EQ(is_signed_integer(dtype), first == 'i') << name;
    EXPECT_EQ(is_integer(dtype), first == 'i' || first == 'u') << name;
    EXPECT_FALSE(is_float(dtype) && is_integer(dtype)) << name;
  }
}

}  // namespace
}  // namespace mlcc
