// Ranges of a parallel phase as a run time may cut them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <random>

namespace mlcc {

// Cuts [0, extent) at random places into pieces of at most `most`.
inline void split_range(int64_t extent, uint64_t most, std::mt19937_64& random,
                        const std::function<void(int64_t, int64_t)>& body) {
  for (int64_t begin = 0; begin < extent;) {
    const int64_t end =
        std::min<int64_t>(extent, begin + 1 + static_cast<int64_t>(random() % most));
    body(begin, end);
    begin = end;
  }
}

}  // namespace mlcc
