// Where in one block of memory the short-lived buffers of a call stand: a pure function of their
// sizes and lifetimes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace mlcc::runtime {

// Offsets are multiples of this many bytes: a cache line, and the widest vector.
constexpr int64_t kArenaAlignment = 64;

// Live from `begin` up to, but not including, `end`; the unit is a step of the executable.
struct ArenaRequest {
  int64_t bytes = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct ArenaLayout {
  std::vector<int64_t> offsets;  // per request, in bytes
  int64_t bytes = 0;             // of the whole block
};

// Buffers that are live at the same time never overlap. Largest first, each in the tightest gap
// that its neighbours in time leave. Requests of 0 bytes get offset 0.
ArenaLayout plan_arena(std::span<const ArenaRequest> requests);

}  // namespace mlcc::runtime
