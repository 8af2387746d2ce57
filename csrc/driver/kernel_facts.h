// What is known of an executable's kernels beside their code: for reports.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/executable.h"

namespace mlcc::driver {

struct KernelFacts {
  std::string label;            // "softmax_add (3 nodes)"
  std::string source;           // the user's line, or empty
  std::optional<double> flops;  // as loop::Work has them
  int64_t bytes = 0;
};

// Of each launch in the order in which they run, at these values of the plan's symbols.
std::vector<KernelFacts> kernel_facts(const runtime::ExecutablePlan& plan,
                                      const std::function<int64_t(std::string_view)>& value_of);

}  // namespace mlcc::driver
