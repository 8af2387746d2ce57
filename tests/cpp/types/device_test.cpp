#include "types/device.h"

#include <gtest/gtest.h>

namespace mlcc {
namespace {

TEST(Device, IsReadAndWritten) {
  for (const char* text : {"cpu", "cuda:0", "cuda:13"}) EXPECT_EQ(Device::parse(text)->str(), text);
  EXPECT_EQ(Device::parse("cuda"), (Device{DeviceKind::kCuda, 0}));
  EXPECT_EQ(Device{}.str(), "cpu");
  for (const char* text : {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cpu:0"})
    EXPECT_FALSE(Device::parse(text)) << text;
}

}  // namespace
}  // namespace mlcc
