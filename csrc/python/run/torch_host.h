// Runs executables over at::Tensors: one TensorProgram per executable, one host per call.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "python/run/control_flow.h"
#include "python/run/extern_call.h"
#include "python/run/kept_tensors.h"
#include "runtime/executable.h"

namespace mlcc::python {

// A tensor over the storage of `base`, as at::as_strided makes it, without the dispatcher: it stays
// inside the call.
at::Tensor make_alias(const at::Tensor& base, at::IntArrayRef shape, at::IntArrayRef strides,
                      int64_t offset);

// An executable bound to torch. Immutable; calls may overlap.
class TensorProgram {
 public:
  explicit TensorProgram(std::shared_ptr<const runtime::Executable> executable);

  const runtime::Executable& executable() const { return *executable_; }
  size_t num_inputs() const { return executable_->num_given_inputs(); }
  bool has_extern_calls() const { return num_extern_calls_ > 0; }

  // `inputs` are tensors, ints, floats or None; they are taken, and each is dropped after its last
  // use. Runs without the GIL: extern ops that Python implements take it by themselves.
  std::vector<c10::IValue> run(std::vector<c10::IValue> inputs) const;

  // The same inside a call of another program, whose guards hold. An output that a kernel writes
  // lies in the tensor of `places` at its number, where there is one of its shape and strides.
  std::vector<c10::IValue> run_nested(std::vector<c10::IValue> inputs,
                                      std::span<const at::Tensor> places = {}) const;

  // InternalError, or Error naming the input, unless the inputs look as the executable was compiled
  // for.
  void check_inputs(const std::vector<c10::IValue>& inputs) const;

 private:
  friend class TensorHost;
  void find_extern_calls();
  void find_tensor_uses();
  const TensorProgram& general() const;  // for inputs that are not what is promised of them

  std::shared_ptr<const runtime::Executable> executable_;
  KeptTensors kept_;
  std::vector<std::unique_ptr<const ExternCall>>
      extern_calls_;  // per step; null where the step is no extern call
  std::vector<std::unique_ptr<const ControlFlowCall>> control_flow_;  // per step, likewise
  size_t num_extern_calls_ = 0;
  c10::Device device_;                  // of the plan
  std::vector<bool> is_output_;         // per slot
  std::vector<bool> is_kernel_input_;   // per input: a kernel reads its memory
  std::vector<bool> is_mutated_input_;  // per input: an extern op writes into it
  // Per step: the results of an extern step that kernels read, and where they must lie.
  std::vector<std::vector<std::pair<runtime::Slot, c10::Device>>> kernel_results_;
  // Made when a promise is found broken; from then on it runs all calls.
  mutable std::once_flag make_general_;
  mutable std::unique_ptr<const TensorProgram> owned_general_;
  mutable std::atomic<const TensorProgram*> general_{nullptr};
};

}  // namespace mlcc::python
