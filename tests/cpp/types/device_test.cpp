#include "types/device.h"

#include <gtest/gtest.h>

namespace mlcc {
namespace {

TEST(Device, TextReadsBack) {
  EXPECT_EQ(Device{}.str(), "cpu");
  EXPECT_EQ((Device{DeviceKind::kCuda, 3}.str()), "cuda:3");
  for (const Device device :
       {Device{}, Device{DeviceKind::kCuda, 0}, Device{DeviceKind::kCuda, 12}})
    EXPECT_EQ(Device::parse(device.str()), device);
  EXPECT_EQ(Device::parse("cuda"), (Device{DeviceKind::kCuda, 0}));
}

TEST(Device, RefusesOtherTexts) {
  for (const char* text :
       {"", "cpu:0", "meta", "cuda:", "cuda:x", "cuda:-1", "cuda:1 ", "cuda:99999999999"})
    EXPECT_FALSE(Device::parse(text)) << text;
}

}  // namespace
}  // namespace mlcc
