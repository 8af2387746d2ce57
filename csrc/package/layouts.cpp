#include "package/layouts.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "package/status.h"

namespace mlcc::package {

std::string What::str() const { return kind + name; }

std::vector<int64_t> row_major(std::span<const int64_t> sizes) {
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  return strides;
}

bool is_empty(std::span<const int64_t> sizes) {
  return std::find(sizes.begin(), sizes.end(), 0) != sizes.end();
}

bool are_equal_strides(std::span<const int64_t> sizes, std::span<const int64_t> a,
                       std::span<const int64_t> b) {
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && a[d] != b[d]) return false;
  return true;
}

// Each dimension steps over all that the smaller ones reach.
bool is_injective(std::span<const int64_t> sizes, std::span<const int64_t> strides) {
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride, size
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1) dims.emplace_back(strides[d], sizes[d]);
  std::sort(dims.begin(), dims.end());
  int64_t reach = 0;  // the furthest element of the dimensions so far
  for (const auto& [stride, size] : dims) {
    if (stride <= reach) return false;
    int64_t length = 0;
    if (__builtin_mul_overflow(size - 1, stride, &length) ||
        __builtin_add_overflow(reach, length, &reach))
      return false;
  }
  return true;
}

void check_data(const What& what, DType dtype, const mlcc_tensor& tensor,
                std::span<const int64_t> sizes) {
  MLCC_STATUS_CHECK(tensor.data != nullptr || is_empty(sizes), MLCC_INVALID_ARGUMENT, what,
                    ": data is null");
  const int64_t alignment = dtype_size(dtype);
  MLCC_STATUS_CHECK(reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(alignment) ==
                        0,
                    MLCC_INVALID_ARGUMENT, what, ": data is not aligned to ", alignment, " bytes");
}

std::vector<int64_t> strides_of(const mlcc_tensor& tensor, std::span<const int64_t> sizes) {
  if (tensor.strides == nullptr) return row_major(sizes);
  return {tensor.strides, tensor.strides + tensor.rank};
}

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
