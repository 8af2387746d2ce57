// The driver's options as Python gives them: a dict of bools, ints and strings.
#pragma once

#include <pybind11/pybind11.h>

#include "driver/options.h"

namespace mlcc::python {

// None stands for what mlcc.config says now. Error on an unknown name or a bad value.
driver::Options to_options(const pybind11::object& values);
pybind11::list option_table();  // rows (name, type, default, env, class, help)

}  // namespace mlcc::python
