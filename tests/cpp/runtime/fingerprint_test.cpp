#include "runtime/fingerprint.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <vector>

namespace mlcc::runtime {
namespace {

uint64_t of(const std::vector<char>& bytes, bool everything = false) {
  return fingerprint(bytes.data(), static_cast<int64_t>(bytes.size()), everything);
}

TEST(Fingerprint, SeesEachByteOfSmallMemory) {
  for (const size_t size : {1, 7, 63, 64, 65, 200, 4097}) {
    std::vector<char> bytes(size, 1);
    const uint64_t before = of(bytes);
    for (char& byte : bytes) {
      byte = 2;
      EXPECT_NE(of(bytes), before) << size;
      byte = 1;
    }
    EXPECT_EQ(of(bytes), before);
  }
  EXPECT_EQ(fingerprint(nullptr, 0), fingerprint(nullptr, 0));
}

TEST(Fingerprint, DependsOnTheOrderOfLines) {
  std::vector<char> a(kFingerprintLineBytes * 2, 0), b = a;
  a[0] = 1;
  b[kFingerprintLineBytes] = 1;
  EXPECT_NE(of(a), of(b));
  EXPECT_NE(of(std::vector<char>(64, 0)), of(std::vector<char>(128, 0)));
}

// As many contiguous bytes as there are between two lines cannot be written unseen.
TEST(Fingerprint, SeesRangesOfLargeMemory) {
  const int64_t size = kWholeFingerprintBytes * 16 + 24;
  std::vector<char> bytes(static_cast<size_t>(size), 0);
  const uint64_t before = of(bytes);
  const int64_t range = size / (kFingerprintLines - 1) + 2 * kFingerprintLineBytes;
  for (int64_t begin = 0; begin + range <= size; begin += 100) {
    for (int64_t i = begin; i < begin + range; ++i) bytes[static_cast<size_t>(i)] = 1;
    EXPECT_NE(of(bytes), before) << begin;
    for (int64_t i = begin; i < begin + range; ++i) bytes[static_cast<size_t>(i)] = 0;
  }
  bytes.back() = 1;
  EXPECT_NE(of(bytes), before);
}

TEST(Fingerprint, OfEverythingSeesEachByte) {
  std::vector<char> bytes(static_cast<size_t>(kWholeFingerprintBytes + 40), 0);
  const uint64_t before = of(bytes, true);
  int unseen = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = 1;
    EXPECT_NE(of(bytes, true), before) << i;
    unseen += of(bytes) == of(std::vector<char>(bytes.size(), 0)) ? 1 : 0;
    bytes[i] = 0;
    if (i % 1000 == 999) i += 500;
  }
  EXPECT_GT(unseen, 0);
}

TEST(Fingerprint, RarelyAgreesForDifferentBytes) {
  std::set<uint64_t> seen;
  std::vector<char> bytes(300, 0);
  uint32_t state = 1;
  for (int round = 0; round < 2000; ++round) {
    for (char& byte : bytes) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
    seen.insert(of(bytes));
  }
  EXPECT_EQ(seen.size(), 2000U);
}

}  // namespace
}  // namespace mlcc::runtime
