// How much memory a call of a plan takes, step by step, for sizes that are known.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/executable.h"

namespace mlcc::runtime {

// From the first element to behind the last one; 0 if there are none. Error where a size or stride
// is negative, or the number is too large.
int64_t storage_bytes(std::span<const int64_t> shape, std::span<const int64_t> strides,
                      int64_t element_bytes);

// Bytes of inputs, results, and values between that are alive while each step runs, each counted
// whole from the step that makes it to its release. What calls need for themselves is not known,
// nor is what lies between the values of an arena. Results that may share memory with operands
// count as if they did. Error where a size has no value.
std::vector<int64_t> live_bytes(const ExecutablePlan& plan,
                                const std::function<int64_t(std::string_view)>& value_of);

}  // namespace mlcc::runtime
