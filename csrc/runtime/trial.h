// Which of two plans of one graph is faster on this machine: their kernels run in turns, over
// memory of their own.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "runtime/executable.h"
#include "support/result.h"

namespace mlcc::runtime {

struct Contender {
  ExecutablePlan plan;
  std::vector<KernelPtr> kernels;  // as Executable takes them
};

struct TrialLimits {
  int64_t bytes = int64_t{128} << 20;  // of all tensors of a contender
  double seconds = 0.005;              // of one run
};

struct TrialResult {
  double first_seconds = 0;  // of one run, in the median
  double second_seconds = 0;
  // How many times as fast the second one is: in the median of the pairs, and in their quartiles.
  double ratio = 1, low_ratio = 1, high_ratio = 1;
};

// Runs the launches in which two plans on the CPU differ; calls between them are left out, and
// values that nothing has computed are made up (floats between 0.5 and 1, other numbers 0).
// `value_of` gives the sizes to take. A reason where there is nothing to compare: no difference,
// more memory or time than the limits allow, a kernel that refuses the made-up values, a size
// without a value.
Result<TrialResult> try_both(const Contender& first, const Contender& second,
                             const std::function<int64_t(std::string_view)>& value_of,
                             const ParallelFor& parallel_for, const TrialLimits& limits = {});

// The same of whatever two functions do, which have run before. Where one takes too long, a few
// runs of each must do: a reason unless one takes several times as long as the other.
Result<TrialResult> time_in_turns(const std::function<void()>& first,
                                  const std::function<void()>& second, double most_seconds);

// Fills memory with such numbers.
void make_up(void* data, int64_t bytes, DType dtype);

}  // namespace mlcc::runtime
