// run_loop_kernel: a kernel given as loop-IR text, run over tensors. For tests.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

void bind_loop_kernel(pybind11::module_& module);

}  // namespace mlcc::python
