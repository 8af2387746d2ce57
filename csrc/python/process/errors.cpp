#include "python/process/errors.h"

#include <pybind11/pybind11.h>

#include <exception>

namespace mlcc::python {
namespace {

namespace py = pybind11;

void set_error(const char* class_name, const std::string& text) {
  const py::object type = py::module_::import("mlcc._errors").attr(class_name);
  PyErr_SetString(type.ptr(), text.c_str());
}

}  // namespace

void set_python_error(const Error& error) {
  const char* name = "Error";
  if (dynamic_cast<const LoadError*>(&error) != nullptr) name = "LoadError";
  if (dynamic_cast<const UnsupportedError*>(&error) != nullptr) name = "UnsupportedError";
  set_error(name, error.what());
}

void set_python_internal_error(const std::string& text) { set_error("InternalError", text); }

void register_error_translator() {
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    if (!pointer) return;
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      set_python_error(error);
    } catch (const InternalError& error) {
      set_python_internal_error(error.what());
    }
  });
}

}  // namespace mlcc::python
