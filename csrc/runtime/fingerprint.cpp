#include "runtime/fingerprint.h"

#include <array>
#include <cstring>

namespace mlcc::runtime {
namespace {

constexpr size_t kLanes = kFingerprintLineBytes / sizeof(uint64_t);

// Clones for wider vectors, chosen when the library is loaded. The sanitizers start too late for
// that.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) &&                             \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define MLCC_WIDE_CLONES __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define MLCC_WIDE_CLONES
#endif

// Each lane takes its word of each line by a step that is one to one in the lane and in the word:
// rotations, since no vector unit before AVX-512 multiplies 64 bits.
MLCC_WIDE_CLONES void add_lines(uint64_t* state, const char* data, int64_t count, int64_t step) {
  std::array<uint64_t, kLanes> lanes;
  std::memcpy(lanes.data(), state, sizeof(lanes));
  for (int64_t line = 0; line < count; ++line) {
    std::array<uint64_t, kLanes> words;
    std::memcpy(words.data(), data + line * step, sizeof(words));
    for (size_t i = 0; i < kLanes; ++i)
      lanes[i] = ((lanes[i] << 29) | (lanes[i] >> 35)) + (words[i] ^ 0x9E3779B97F4A7C15ULL);
  }
  std::memcpy(state, lanes.data(), sizeof(lanes));
}

// One to one in each argument.
uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9FB21C651E98DF25ULL;
  return hash ^ (hash >> 32);
}

}  // namespace

uint64_t fingerprint(const void* data, int64_t bytes, bool everything) {
  const char* const begin = static_cast<const char*>(data);
  std::array<uint64_t, kLanes> lanes{1, 2, 3, 4, 5, 6, 7, 8};
  const int64_t lines = bytes / kFingerprintLineBytes;
  const int64_t rest = bytes % kFingerprintLineBytes;
  if (everything || bytes <= kWholeFingerprintBytes) {
    add_lines(lanes.data(), begin, lines, kFingerprintLineBytes);
  } else {
    // Whole lines apart, the last of them among the last two.
    const int64_t step = (lines - 1) / (kFingerprintLines - 1) * kFingerprintLineBytes;
    add_lines(lanes.data(), begin, kFingerprintLines, step);
    add_lines(lanes.data(), begin + bytes - kFingerprintLineBytes, 1, 0);
  }
  if (rest != 0 && bytes <= kWholeFingerprintBytes) {
    std::array<char, kFingerprintLineBytes> tail{};
    std::memcpy(tail.data(), begin + bytes - rest, static_cast<size_t>(rest));
    add_lines(lanes.data(), tail.data(), 1, 0);
  } else if (rest != 0 && everything) {
    add_lines(lanes.data(), begin + bytes - kFingerprintLineBytes, 1, 0);
  }
  uint64_t hash = static_cast<uint64_t>(bytes);
  for (const uint64_t lane : lanes) hash = mix(hash, lane);
  return hash;
}

}  // namespace mlcc::runtime
