// Weights that are the bytes of a file, mapped: what a kept value was made of need not stay in
// memory beside it.
#pragma once

#include <ATen/core/TensorBody.h>
#include <pybind11/pybind11.h>

#include <vector>

namespace mlcc::python {

// Of a private mapping of a file, in which nobody writes but by ops of torch. So what it holds need
// not be looked at, which would read the file's pages into memory in each call.
void mark_as_file(const at::Tensor& tensor);
bool is_file(const at::Tensor& tensor);

// As _C.mark_as_file.
void bind_file_weights(pybind11::module_& module);

// A whole reading of some tensors. Behind it pages of files are given back to the system, unless a
// program wrote into one: whoever reads the tensor then has the file read again.
class WholeReading {
 public:
  explicit WholeReading(const std::vector<at::Tensor>& tensors);
  ~WholeReading();
  WholeReading(const WholeReading&) = delete;
  WholeReading& operator=(const WholeReading&) = delete;

 private:
  std::vector<at::Tensor> of_files_;
};

}  // namespace mlcc::python
