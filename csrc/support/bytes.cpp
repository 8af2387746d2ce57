#include "support/bytes.h"

#include <limits>

#include "support/error.h"

namespace mlcc {
namespace {

constexpr int kBitsOfByte = 7;
constexpr uint8_t kMore = 0x80;

}  // namespace

void ByteWriter::add_count(uint64_t value) {
  while (value >= kMore) {
    add_byte(static_cast<uint8_t>(value) | kMore);
    value >>= kBitsOfByte;
  }
  add_byte(static_cast<uint8_t>(value));
}

// The sign goes to the lowest bit.
void ByteWriter::add_number(int64_t value) {
  add_count((static_cast<uint64_t>(value) << 1) ^ static_cast<uint64_t>(value >> 63));
}

void ByteWriter::add_text(std::string_view text) {
  add_count(text.size());
  bytes_ += text;
}

uint8_t ByteReader::byte() {
  if (place_ == bytes_.size()) fail("ends early");
  return static_cast<uint8_t>(bytes_[place_++]);
}

uint64_t ByteReader::count() {
  uint64_t value = 0;
  for (int shift = 0; shift < std::numeric_limits<uint64_t>::digits; shift += kBitsOfByte) {
    const uint8_t next = byte();
    value |= static_cast<uint64_t>(next & (kMore - 1)) << shift;
    if (next < kMore) return value;
  }
  fail("a number has more than 64 bits");
}

int64_t ByteReader::number() {
  const uint64_t value = count();
  return static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
}

std::string_view ByteReader::text() {
  const size_t size = length();
  const std::string_view found = bytes_.substr(place_, size);
  place_ += size;
  return found;
}

size_t ByteReader::length() {
  const uint64_t value = count();
  if (value > bytes_.size() - place_) fail("ends early");
  return static_cast<size_t>(value);
}

int32_t ByteReader::index() {
  const uint64_t value = count();
  if (value > static_cast<uint64_t>(std::numeric_limits<int32_t>::max()))
    fail("a number is too large");
  return static_cast<int32_t>(value);
}

bool ByteReader::flag() {
  const uint8_t value = byte();
  if (value > 1) fail("a flag is neither 0 nor 1");
  return value == 1;
}

void ByteReader::expect_end() {
  if (place_ != bytes_.size()) fail("has bytes behind its end");
}

void ByteReader::fail(std::string_view why) const {
  throw Error(detail::join(what_, ": ", why, " (byte ", place_, " of ", bytes_.size(), ")"));
}

}  // namespace mlcc
