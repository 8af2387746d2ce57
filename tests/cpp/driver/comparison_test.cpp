#include "driver/comparison.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace mlcc::driver {
namespace {

HostTensor floats(const std::vector<float>& values) {
  HostTensor tensor = make_host_tensor(DType::kF32, {static_cast<int64_t>(values.size())}, {1});
  std::memcpy(tensor.bytes.data(), values.data(), values.size() * sizeof(float));
  return tensor;
}

bool is_right(const std::vector<float>& found, const std::vector<float>& reference,
              const std::vector<float>& rounded) {
  const std::vector<HostTensor> others = {floats(rounded)};
  return !find_difference(floats(found), floats(reference), others, {}).has_value();
}

TEST(Comparison, ZerosOfAMaskSayNothingOfRounding) {
  // A gradient that is zero but for cancellation, under the mask of a relu. Other roundings happen
  // to leave the fifth element where it is.
  const std::vector<float> reference = {0, 0, 0, 0, 0, 2e-9F, -1e-9F, 3e-9F};
  const std::vector<float> rounded = {0, 0, 0, 0, 0, 1e-9F, 2e-9F, 1e-9F};
  EXPECT_TRUE(is_right({0, 0, 0, 0, -1e-9F, 3e-9F, 0, 1e-9F}, reference, rounded));
  EXPECT_FALSE(is_right({0, 0, 0, 0, -1e-6F, 3e-9F, 0, 1e-9F}, reference, rounded));
}

TEST(Comparison, WhatNoRoundingMovesIsExact) {
  EXPECT_TRUE(is_right({0, 1, 2}, {0, 1, 2}, {0, 1, 2}));
  EXPECT_FALSE(is_right({1e-5F, 1, 2}, {0, 1, 2}, {0, 1, 2}));
  EXPECT_FALSE(is_right({1e-5F, 0, 0}, {0, 0, 0}, {0, 0, 0}));
}

}  // namespace
}  // namespace mlcc::driver
