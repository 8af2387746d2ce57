#include "support/hash.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace mlcc {

std::string Hash128::hex() const {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(32, '0');
  for (int i = 0; i < 16; ++i) {
    text[15 - i] = kDigits[(high >> (4 * i)) & 15];
    text[31 - i] = kDigits[(low >> (4 * i)) & 15];
  }
  return text;
}

Hash128 hash_bytes(const void* data, size_t size) {
  const XXH128_hash_t h = XXH3_128bits(data, size);
  return {h.low64, h.high64};
}

Hash128 hash_bytes(std::string_view bytes) { return hash_bytes(bytes.data(), bytes.size()); }

FieldHasher& FieldHasher::add(std::string_view field) {
  add(static_cast<int64_t>(field.size()));
  bytes_.append(field);
  return *this;
}

FieldHasher& FieldHasher::add(int64_t field) {
  bytes_.append(reinterpret_cast<const char*>(&field), sizeof field);
  return *this;
}

Hash128 FieldHasher::finish() const { return hash_bytes(bytes_); }

}  // namespace mlcc
