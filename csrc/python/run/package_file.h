// Writes an executable as a package that runs without Python.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

// Adds write_package() to the module.
void bind_package_file(pybind11::module_& module);

}  // namespace mlcc::python
