// Whether a kernel's result is as right as rounding allows.
//
// Numbers that are no floats, and where NaN and infinities stand, are equal to the reference's. A
// float may be off by
//
//   e (16 + sqrt(n)) |r|  +  4 e rms(r)  +  16 max(s, median(s))  +  2 of the least denormal
//
// with r the reference, e the epsilon of the result's dtype, n the terms that meet in one element
// (1 without a reduction), and s how far the reference parts from itself when it is evaluated
// with other roundings (Reference::run); the median leaves out elements that are zero with all of
// them, as a mask makes them. The first term is what rounding and approximations do to a number,
// and sums in another order on the average; the second lets an approximation err near its zeros;
// the third is what cancellation makes of rounding. An element whose kind of value (NaN, infinity,
// an integer) changes with the roundings is not judged.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "driver/interpret.h"

namespace mlcc::driver {

struct Difference {
  int64_t element;  // in row-major order
  double found, expected, allowed;
  int64_t num_wrong;  // elements
};

struct ComparisonOptions {
  int64_t num_terms = 1;
  // Values may have been kept wider than the reference keeps them: where that overflows, nothing is
  // judged.
  bool may_be_wider = false;
};

// The largest difference that is not allowed. All tensors have one dtype and shape; their strides
// may differ.
std::optional<Difference> find_difference(const HostTensor& found, const HostTensor& reference,
                                          std::span<const HostTensor> rounded,
                                          const ComparisonOptions& options);

// Elements of a tensor by their row-major number.
class Elements {
 public:
  explicit Elements(const HostTensor& tensor) : tensor_(tensor) {}
  int64_t size() const;
  int64_t byte_offset(int64_t element) const;
  double operator[](int64_t element) const;  // of i64 the nearest

 private:
  const HostTensor& tensor_;
};

double epsilon(DType dtype);  // of a float dtype: from 1 to the next number

}  // namespace mlcc::driver
