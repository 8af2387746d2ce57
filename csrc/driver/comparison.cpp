#include "driver/comparison.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "loop/scalar_value.h"
#include "support/error.h"

namespace mlcc::driver {
namespace {

// The factors of the bound in comparison.h.
struct Tolerance {
  // Epsilons of an element, for what approximations err; a sum adds the root of its terms.
  static constexpr double kOfNumber = 16;
  static constexpr double kOfMeanSquare = 4;  // epsilons of the root of the mean square
  static constexpr double kOfSpread = 16;     // of how far other roundings move the reference
  static constexpr double kOfDenormal = 2;    // least denormals
};

uint64_t bits_of(const HostTensor& tensor, int64_t byte_offset) {
  uint64_t bits = 0;
  std::memcpy(&bits, tensor.bytes.data() + byte_offset,
              static_cast<size_t>(dtype_size(tensor.dtype)));
  return bits;
}

double least_denormal(DType dtype) {
  if (dtype == DType::kF64) return std::numeric_limits<double>::denorm_min();
  if (dtype == DType::kF16) return 0x1p-24;
  return std::numeric_limits<float>::denorm_min();  // bf16's subnormals are finer than any kernel
                                                    // keeps
}

// NaN, an infinity or a number.
int kind(double value) {
  if (std::isnan(value)) return 2;
  return std::isinf(value) ? (value > 0 ? 1 : -1) : 0;
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// What is allowed beside the reference, element by element.
class FloatBounds {
 public:
  FloatBounds(const Elements& reference, DType dtype, std::span<const HostTensor> rounded,
              int64_t num_terms)
      : reference_(reference), spread_(static_cast<size_t>(reference.size())) {
    double squares = 0;
    int64_t finite = 0;
    for (int64_t i = 0; i < reference.size(); ++i) {
      if (kind(reference[i]) != 0) continue;
      squares += reference[i] * reference[i];
      ++finite;
      for (const HostTensor& other : rounded) {
        const double distance = std::abs(Elements(other)[i] - reference[i]);
        if (std::isfinite(distance)) spread_[i] = std::max(spread_[i], distance);
      }
    }
    const double e = epsilon(dtype);
    relative_ = e * (Tolerance::kOfNumber + std::sqrt(static_cast<double>(num_terms)));
    absolute_ = Tolerance::kOfDenormal * least_denormal(dtype);
    if (finite > 0)
      absolute_ += Tolerance::kOfMeanSquare * e * std::sqrt(squares / static_cast<double>(finite));
    median_ = median(moving());
  }

  double operator()(int64_t i) const {
    return relative_ * std::abs(reference_[i]) + absolute_ +
           Tolerance::kOfSpread * std::max(spread_[static_cast<size_t>(i)], median_);
  }

 private:
  // The spread of all elements but those that are zero with all roundings.
  std::vector<double> moving() const {
    std::vector<double> found;
    for (int64_t i = 0; i < reference_.size(); ++i) {
      const double spread = spread_[static_cast<size_t>(i)];
      if (reference_[i] != 0 || spread != 0) found.push_back(spread);
    }
    return found;
  }

  const Elements& reference_;
  std::vector<double> spread_;
  double relative_ = 0, absolute_ = 0, median_ = 0;
};

bool is_steady(const HostTensor& reference, std::span<const HostTensor> rounded, int64_t i) {
  const double value = Elements(reference)[i];
  return std::all_of(rounded.begin(), rounded.end(), [&](const HostTensor& other) {
    const double changed = Elements(other)[i];
    return is_float(reference.dtype) ? kind(changed) == kind(value) : changed == value;
  });
}

class Comparison {
 public:
  Comparison(const HostTensor& found, const HostTensor& reference,
             std::span<const HostTensor> rounded, const ComparisonOptions& options)
      : found_(found), reference_(reference), rounded_(rounded), options_(options) {}

  std::optional<Difference> find() {
    if (is_float(reference_.dtype))
      compare_floats();
    else
      compare_others();
    return worst_;
  }

 private:
  void compare_floats() {
    const Elements found(found_);
    const Elements expected(reference_);
    const FloatBounds bounds(expected, reference_.dtype, rounded_, options_.num_terms);
    for (int64_t i = 0; i < expected.size(); ++i) {
      const bool same_kind = kind(found[i]) == kind(expected[i]);
      if (same_kind && kind(expected[i]) != 0) continue;
      if (same_kind) {
        const double distance = std::abs(found[i] - expected[i]);
        if (distance > bounds(i)) add(i, found[i], expected[i], bounds(i), distance);
      } else if (is_steady(reference_, rounded_, i) &&
                 !(options_.may_be_wider && kind(expected[i]) != 0)) {
        add(i, found[i], expected[i], 0, std::numeric_limits<double>::infinity());
      }
    }
  }

  void compare_others() {
    const Elements found(found_);
    const Elements expected(reference_);
    for (int64_t i = 0; i < expected.size(); ++i) {
      if (bits_of(found_, found.byte_offset(i)) == bits_of(reference_, expected.byte_offset(i)) ||
          !is_steady(reference_, rounded_, i))
        continue;
      add(i, found[i], expected[i], 0, std::abs(found[i] - expected[i]));
    }
  }

  void add(int64_t element, double found, double expected, double allowed, double distance) {
    const int64_t number = (worst_ ? worst_->num_wrong : 0) + 1;
    if (!worst_ || distance > largest_) {
      worst_ = Difference{element, found, expected, allowed, number};
      largest_ = distance;
    }
    worst_->num_wrong = number;
  }

  const HostTensor& found_;
  const HostTensor& reference_;
  const std::span<const HostTensor> rounded_;
  const ComparisonOptions& options_;
  std::optional<Difference> worst_;
  double largest_ = 0;
};

}  // namespace

int64_t Elements::size() const {
  int64_t elements = 1;
  for (const int64_t extent : tensor_.shape) elements *= extent;
  return elements;
}

int64_t Elements::byte_offset(int64_t element) const {
  int64_t at = 0;
  for (size_t d = tensor_.shape.size(); d-- > 0;) {
    at += element % tensor_.shape[d] * tensor_.strides[d];
    element /= tensor_.shape[d];
  }
  return at * dtype_size(tensor_.dtype);
}

double Elements::operator[](int64_t element) const {
  const uint64_t bits = bits_of(tensor_, byte_offset(element));
  if (is_float(tensor_.dtype)) return loop::decode_float(tensor_.dtype, bits);
  return static_cast<double>(loop::decode_int(tensor_.dtype, bits));
}

double epsilon(DType dtype) {
  MLCC_CHECK(is_float(dtype), "epsilon of ", dtype_name(dtype));
  if (dtype == DType::kF64) return std::numeric_limits<double>::epsilon();
  if (dtype == DType::kF32) return std::numeric_limits<float>::epsilon();
  return dtype == DType::kF16 ? 0x1p-10 : 0x1p-7;
}

std::optional<Difference> find_difference(const HostTensor& found, const HostTensor& reference,
                                          std::span<const HostTensor> rounded,
                                          const ComparisonOptions& options) {
  return Comparison(found, reference, rounded, options).find();
}

}  // namespace mlcc::driver
