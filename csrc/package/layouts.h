// Sizes and strides, in elements, of tensors that callers describe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "package/mlcc_runtime.h"
#include "types/dtype.h"

namespace mlcc::package {

// What errors name.
struct What {
  const char* kind;  // "input "
  const std::string& name;
  std::string str() const;
};

std::vector<int64_t> row_major(std::span<const int64_t> sizes);  // strides

bool is_empty(std::span<const int64_t> sizes);

// Whether two strides address the same elements in the same order.
bool are_equal_strides(std::span<const int64_t> sizes, std::span<const int64_t> a,
                       std::span<const int64_t> b);

// Whether no two elements lie at one place, by sizes and strides alone.
bool is_injective(std::span<const int64_t> sizes, std::span<const int64_t> strides);

std::vector<int64_t> strides_of(const mlcc_tensor& tensor, std::span<const int64_t> sizes);

// StatusError where the data of a tensor of these sizes is null or not aligned to its elements.
void check_data(const What& what, DType dtype, const mlcc_tensor& tensor,
                std::span<const int64_t> sizes);

// Copies elements between two layouts of the same sizes, which do not overlap.
void copy_strided(char* to, std::span<const int64_t> to_strides, const char* from,
                  std::span<const int64_t> from_strides, std::span<const int64_t> sizes,
                  int64_t element_bytes);

}  // namespace mlcc::package
