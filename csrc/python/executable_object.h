// What mlcc._C.compile returns: a callable over a list of tensors.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

// Adds Executable and compile() to the module.
void bind_executable(pybind11::module_& module);

}  // namespace mlcc::python
