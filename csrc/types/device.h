// Where a tensor lives and a kernel runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace mlcc {

enum class DeviceKind : uint8_t { kCpu, kCuda };

struct Device {
  DeviceKind kind = DeviceKind::kCpu;
  int32_t index = 0;

  friend bool operator==(const Device&, const Device&) = default;
  friend auto operator<=>(const Device&, const Device&) = default;
  std::string str() const;                                    // "cpu", "cuda:0"
  static std::optional<Device> parse(std::string_view text);  // "cuda" is "cuda:0"
};

}  // namespace mlcc
