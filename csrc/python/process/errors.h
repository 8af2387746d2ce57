// mlcc::Error, its kinds and mlcc::InternalError as the Python classes of mlcc._errors.
#pragma once

#include <string>

#include "support/error.h"

namespace mlcc::python {

// Sets Python's error indicator; holds the GIL.
void set_python_error(const Error& error);
void set_python_internal_error(const std::string& text);

// Makes functions bound by pybind11 in this module raise those classes.
void register_error_translator();

}  // namespace mlcc::python
