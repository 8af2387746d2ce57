#include "types/device.h"

#include <charconv>

#include "support/error.h"

namespace mlcc {

std::string Device::str() const {
  switch (kind) {
  case DeviceKind::kCpu: return "cpu";
  case DeviceKind::kCuda: return "cuda:" + std::to_string(index);
  }
  MLCC_UNREACHABLE("device kind ", static_cast<int>(kind));
}

std::optional<Device> Device::parse(std::string_view text) {
  static constexpr std::string_view kCudaPrefix = "cuda:";
  if (text == "cpu") return Device{};
  if (text == "cuda") return Device{DeviceKind::kCuda, 0};
  if (!text.starts_with(kCudaPrefix)) return std::nullopt;
  text.remove_prefix(kCudaPrefix.size());
  Device device{DeviceKind::kCuda, 0};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), device.index);
  if (error != std::errc() || end != text.data() + text.size() || device.index < 0)
    return std::nullopt;
  return device;
}

}  // namespace mlcc
