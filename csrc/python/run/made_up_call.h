// Calls of executables over made-up inputs, to see how long they take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "runtime/executable.h"

namespace mlcc::python {

// Runs the executable on the CPU with libtorch's ops, below autograd and out of sight of modes and
// profilers. Its inputs have the sizes that `size_of` tells.
std::function<void()> made_up_call(std::shared_ptr<const runtime::Executable> executable,
                                   const std::function<int64_t(std::string_view)>& size_of);

}  // namespace mlcc::python
