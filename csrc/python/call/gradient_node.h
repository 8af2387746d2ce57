// Gradients of compiled functions as nodes of torch's autograd, for calls that AOTAutograd's
// wrapper would add nothing to.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/SafePyObject.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/autograd/edge.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "python/run/torch_host.h"

namespace mlcc::python {

// The inputs' places in autograd's graph.
std::vector<torch::autograd::Edge> gradient_edges(const std::vector<c10::IValue>& inputs);

// How the outputs of a forward executable lead to the backward graph, which is compiled when the
// first gradient is asked for. Shared by the nodes of all calls.
class Gradient : public std::enable_shared_from_this<Gradient> {
 public:
  // What mlcc.capture.gradients says of a trace.
  explicit Gradient(const pybind11::dict& facts);

  // Makes a node of the results among the forward executable's outputs; a result that autograd
  // knows already, as a view, is replaced. Under the GIL.
  void attach(std::vector<torch::autograd::Edge> edges, std::vector<c10::IValue>& outputs) const;

  // The gradient of result `i` as the backward graph was compiled for it.
  at::Tensor as_compiled(size_t i, at::Tensor gradient) const;

  // The gradients of the forward executable's inputs, undefined where there is none, from what was
  // saved and the gradients of the results. Without the GIL.
  std::vector<at::Tensor> run(std::vector<c10::IValue> inputs) const;

  // Error unless the backward graph may run in the modes that torch is in.
  void check_modes() const;

 private:
  struct Result {
    size_t output;  // of the forward executable
    // Of its gradient: a memory format, or sizes and strides.
    std::optional<at::MemoryFormat> format;
    std::vector<int64_t> sizes, strides;
  };
  struct Saved {
    int64_t output;  // of the forward executable; -1: `constant`
    c10::IValue constant;
    bool is_float;  // a Python float, as a tensor
  };
  struct Backward {
    std::shared_ptr<const TensorProgram> program;  // null where Python runs the graph
    std::vector<c10::IValue> constants;            // inputs of the program after those given
    std::vector<int64_t> outputs;                  // per input of the forward executable; -1: none
    std::unique_ptr<c10::SafePyObject> function;   // from a list of inputs to outputs
  };

  const Backward& backward() const;
  std::vector<at::Tensor> run_in_python(const Backward& backward,
                                        const std::vector<c10::IValue>& inputs) const;

  std::vector<Result> results_;  // those with gradients
  std::vector<size_t> tensors_;  // outputs that are saved
  std::vector<Saved> numbers_;   // saved, too
  bool allows_deterministic_;    // the graph was compiled for torch's deterministic algorithms
  // Under the GIL, but for reading `ready_`.
  mutable std::unique_ptr<c10::SafePyObject> compile_;
  mutable std::unique_ptr<const Backward> backward_;
  mutable std::atomic<const Backward*> ready_ = nullptr;
};

}  // namespace mlcc::python
