#include "python/run/loop_kernel.h"

#include <pybind11/stl.h>
#include <torch/csrc/autograd/python_variable.h>

#include <optional>
#include <string>
#include <vector>

#include "driver/loop_kernel.h"
#include "python/process/errors.h"
#include "python/process/options.h"
#include "python/process/parallel.h"
#include "python/process/without_gil.h"
#include "python/run/ivalues.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

std::vector<at::Tensor> to_tensors(const py::sequence& buffers) {
  std::vector<at::Tensor> tensors;
  for (py::handle buffer : buffers) {
    MLCC_USER_CHECK(THPVariable_Check(buffer.ptr()), "buffer ", tensors.size(),
                    ": expected a tensor");
    tensors.push_back(THPVariable_Unpack(buffer.ptr()));
  }
  return tensors;
}

std::vector<void*> data_of(const std::string& text, const std::vector<at::Tensor>& tensors) {
  const std::vector<driver::LoopKernelBuffer> buffers = driver::loop_kernel_buffers(text);
  std::vector<void*> data;
  for (size_t i = 0; i < tensors.size(); ++i) {
    MLCC_USER_CHECK(i >= buffers.size() || tensors[i].scalar_type() == to_torch(buffers[i].dtype),
                    "buffer ", buffers[i].name, ": found ", tensors[i].scalar_type(), ", expected ",
                    dtype_name(buffers[i].dtype));
    data.push_back(tensors[i].mutable_data_ptr());
  }
  return data;
}

void run_loop_kernel(const std::string& text, const std::vector<int64_t>& sizes,
                     const py::sequence& buffers, const std::string& backend,
                     const py::object& options) {
  const driver::Options values = to_options(options);
  const std::vector<at::Tensor> tensors = to_tensors(buffers);
  const std::vector<void*> data = data_of(text, tensors);
  std::optional<runtime::KernelError> error;
  {
    const WithoutGil no_gil;
    const ForkBarrier barrier;
    error = driver::run_loop_kernel(text, sizes, data, backend, values, torch_parallel);
  }
  if (!error) return;
  const py::object type = py::module_::import("builtins").attr(error->exception.c_str());
  PyErr_SetString(type.ptr(), error->text.c_str());
  throw py::error_already_set();
}

}  // namespace

void bind_loop_kernel(py::module_& module) {
  module.def("run_loop_kernel", &run_loop_kernel, py::arg("text"), py::arg("sizes"),
             py::arg("buffers"), py::arg("backend") = "cpu", py::arg("options") = py::none(),
             "Run a loop-IR kernel over tensors in place; raise what a failed check names.");
}

}  // namespace mlcc::python
