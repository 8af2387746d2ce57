// Whether memory still holds what it held, for far less than reading it.
#pragma once

#include <cstdint>

namespace mlcc::runtime {

// Memory up to here is read whole.
constexpr int64_t kWholeFingerprintBytes = int64_t{16} << 10;
// Of larger memory so many lines are read, spread evenly, the first and the last among them. Each
// stands in a page of its own, and its address costs more than its bytes.
constexpr int64_t kFingerprintLines = 32;
constexpr int64_t kFingerprintLineBytes = 64;

// Of the bytes that are read, `everything` reads all. Two memories that differ in one of the 64-bit
// words that are read have different fingerprints; if they differ in several, all but surely. Not
// cryptographic.
uint64_t fingerprint(const void* data, int64_t bytes, bool everything = false);

}  // namespace mlcc::runtime
