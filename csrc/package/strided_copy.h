// Copies elements between two layouts of the same sizes.
#pragma once

#include <cstdint>
#include <span>

namespace mlcc::package {

// Strides in elements; the two do not overlap.
void copy_strided(char* to, std::span<const int64_t> to_strides, const char* from,
                  std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                  int64_t element_bytes);

}  // namespace mlcc::package
