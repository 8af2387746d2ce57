// Which tensors of a call share memory.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

// Adds writes_overlap to the module.
void bind_overlaps(pybind11::module_& module);

}  // namespace mlcc::python
