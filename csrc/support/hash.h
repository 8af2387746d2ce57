// 128-bit content hashes (xxHash): keys of kernels, graphs and cache files. Not cryptographic.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace mlcc {

struct Hash128 {
  uint64_t low = 0;
  uint64_t high = 0;

  friend bool operator==(const Hash128&, const Hash128&) = default;
  friend auto operator<=>(const Hash128&, const Hash128&) = default;
  std::string hex() const;  // 32 lower-case digits
};

Hash128 hash_bytes(const void* data, size_t size);
Hash128 hash_bytes(std::string_view bytes);

// Hashes a sequence of fields so that ("ab","c") and ("a","bc") differ: each field goes in with its
// length.
class FieldHasher {
 public:
  FieldHasher& add(std::string_view field);
  FieldHasher& add(int64_t field);
  Hash128 finish() const;

 private:
  std::string bytes_;
};

}  // namespace mlcc

template <>
struct std::hash<mlcc::Hash128> {
  size_t operator()(const mlcc::Hash128& h) const noexcept {
    return h.low ^ (h.high * 0x9E3779B97F4A7C15ULL);
  }
};
