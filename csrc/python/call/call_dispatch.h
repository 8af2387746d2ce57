// CallDispatch: from the arguments of a Python call to the executable compiled for it, for the
// calls of mlcc.jit that need nothing of Python on the way.
#pragma once

#include <pybind11/pybind11.h>

namespace mlcc::python {

// Adds CallDispatch to the module.
void bind_call_dispatch(pybind11::module_& module);

}  // namespace mlcc::python
