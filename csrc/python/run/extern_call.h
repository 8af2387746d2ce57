// An extern step of an executable, bound to torch's dispatcher: the op is looked up and its
// constant arguments are converted once, when the executable is made.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>

#include <atomic>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "python/run/ivalues.h"
#include "runtime/executable.h"

namespace mlcc::python {

class ExternCall {
 public:
  // `step` outlives this. `bound` are the symbols that have values when the step runs: what an
  // expected shape says in terms of others is not checked. Error if torch knows no such op or its
  // schema does not take the arguments.
  ExternCall(const runtime::ExternStep& step, const std::set<std::string>& bound);

  // Takes the arguments from `slots` and puts the results there. `stack` is scratch. What the op
  // throws passes through; Error if a result is not what the step expects.
  void run(Slots& slots, const Evaluate& evaluate, torch::jit::Stack& stack) const;

  // Slots of the tensors that the op writes into.
  const std::vector<runtime::Slot>& mutated() const { return mutated_; }

 private:
  // A size or stride that a result is held against.
  struct ExpectedNumber {
    enum class Kind : uint8_t { kConstant, kExpression, kUnchecked };
    Kind kind;
    int64_t value;
    const SymExpr* expression;
    int64_t evaluate(const Evaluate& evaluate) const;  // of the first two kinds
  };
  struct ExpectedTensor {
    c10::ScalarType dtype;
    std::vector<ExpectedNumber> shape;
    std::vector<ExpectedNumber> strides;
    bool is_empty() const;  // one dimension of constant size 0
  };
  struct DynamicArgument {
    size_t position;
    const Argument* argument;
  };

  void bind_arguments();
  void bind_argument(size_t position, const Argument& argument);
  c10::IValue convert(const ArgumentConverter& converter, size_t position,
                      const Argument& argument) const;
  void expect_results(const std::set<std::string>& bound);
  void find_out_form();
  std::optional<at::Tensor> large_result(const Evaluate& evaluate) const;
  void take_results(Slots& slots, const Evaluate& evaluate, torch::jit::Stack& stack) const;
  void put_result(size_t index, c10::IValue value, Slots& slots, const Evaluate& evaluate) const;
  at::Tensor checked(size_t index, at::Tensor tensor, const Evaluate& evaluate) const;
  std::vector<int64_t> expected_strides(size_t index, const at::Tensor& tensor,
                                        const Evaluate& evaluate) const;
  at::Tensor restrided(size_t index, const at::Tensor& tensor, const Evaluate& evaluate) const;

  const runtime::ExternStep& step_;
  c10::OperatorHandle op_;
  std::optional<c10::OperatorHandle> out_form_;  // takes the tensor to write into as one more
  torch::jit::Stack constants_;                  // all arguments; those that change are empty
  std::vector<std::pair<size_t, runtime::Slot>>
      tensors_;  // position of an argument that is simply a tensor
  std::vector<DynamicArgument> dynamic_;
  std::vector<runtime::Slot> mutated_;
  std::vector<std::optional<ExpectedTensor>> expected_;
  mutable std::atomic<bool> told_restride_{false};
};

}  // namespace mlcc::python
