// What mlcc._C.compile returns: a callable over a list of tensors.
#pragma once

#include <ATen/core/ivalue.h>
#include <pybind11/pybind11.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "driver/driver.h"
#include "python/run/torch_host.h"

namespace mlcc::python {

struct ExecutableObject {
  std::shared_ptr<const TensorProgram> program;
  std::string graph_text;
  driver::CompileStats stats;
  std::vector<std::string> fusion_refusals;
  std::vector<std::shared_ptr<const runtime::Executable>> recipes;  // as Compilation's
};

// A tensor, int, float, bool or None; Error naming the input for other objects.
c10::IValue to_ivalue(PyObject* object, Py_ssize_t index);
pybind11::object from_ivalue(c10::IValue value);

// Runs `body`; errors of ATen arrive in Python as eager raises them, its warnings as Python
// warnings.
pybind11::object with_torch_errors(const std::function<pybind11::object()>& body);

// Adds Executable and compile() to the module.
void bind_executable(pybind11::module_& module);

}  // namespace mlcc::python
