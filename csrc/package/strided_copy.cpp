#include "package/strided_copy.h"

#include <cstring>

namespace mlcc::package {

void copy_strided(char* to, std::span<const int64_t> to_strides, const char* from,
                  std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                  int64_t element_bytes) {
  if (sizes.empty()) {
    std::memcpy(to, from, static_cast<size_t>(element_bytes));
    return;
  }
  const bool is_row = sizes.size() == 1 && to_strides[0] == 1 && from_strides[0] == 1;
  if (is_row && sizes[0] > 0) {
    std::memcpy(to, from, static_cast<size_t>(sizes[0] * element_bytes));
    return;
  }
  for (int64_t i = 0; i < sizes[0]; ++i)
    copy_strided(to + i * to_strides[0] * element_bytes, to_strides.subspan(1),
                 from + i * from_strides[0] * element_bytes, from_strides.subspan(1),
                 sizes.subspan(1), element_bytes);
}

}  // namespace mlcc::package
