#include "python/call/gradient_node.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <pybind11/stl.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/csrc/utils/pybind.h>

#include <functional>
#include <mutex>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>

#include "python/process/errors.h"
#include "python/run/executable_object.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

using NodePointer = decltype(std::declval<Node&>().getptr());

// torch before 2.13 holds nodes by std::shared_ptr.
template <typename T, typename Pointer = NodePointer, typename... Arguments>
Pointer make_node(Arguments&&... arguments) {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<Node>>)
    return Pointer(new T(std::forward<Arguments>(arguments)...),
                   [](auto* node) { deleteNode(node); });
  else
    return c10::make_intrusive<T>(std::forward<Arguments>(arguments)...);
}

[[noreturn]] void throw_set_error() {
  python_error error;
  error.persist();
  throw error;
}

// Errors of `body` as torch's engine hands them on to Python.
variable_list with_engine_errors(const std::function<variable_list()>& body) {
  try {
    return body();
  } catch (py::error_already_set& error) {
    const py::gil_scoped_acquire gil;
    error.restore();
    throw_set_error();
  } catch (const Error& error) {
    const py::gil_scoped_acquire gil;
    set_python_error(error);
    throw_set_error();
  } catch (const InternalError& error) {
    const py::gil_scoped_acquire gil;
    set_python_internal_error(error.what());
    throw_set_error();
  }
}

// The same elements as a tensor that autograd knows nothing of.
at::Tensor unknown_to_autograd(const at::Tensor& tensor) {
  return make_alias(tensor, tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

constexpr c10::DispatchKeySet kBatched{c10::DispatchKey::FuncTorchBatched,
                                       c10::DispatchKey::Batched};

void check_transforms(bool is_under_transform) {
  TORCH_CHECK(!is_under_transform,
              "It looks like you're trying to call a compiled backward function within "
              "vmap/grad/vjp, which isn't supported. Try wrapping vmap inside mlcc.jit, or skip "
              "compiling the backward function.");
}

class GradientNode final : public Node {
 public:
  GradientNode(std::shared_ptr<const Gradient> gradient, edge_list&& edges,
               std::vector<c10::IValue> numbers)
      : Node(std::move(edges)), gradient_(std::move(gradient)), numbers_(std::move(numbers)) {}

  // After the history of the results is set.
  void save(const at::Tensor& tensor) {
    // A view would keep its base, and the graph that made it, alive.
    if (tensor.is_view())
      saved_.emplace_back(tensor.detach(), false);
    else
      saved_.emplace_back(tensor, tensor.grad_fn().get() == this);
  }
  void reserve(size_t count) { saved_.reserve(count); }

  std::string name() const override { return "CompiledFunctionBackward"; }

  void will_release_variables() override {
    const std::lock_guard lock(mutex_);
    is_last_run_ = true;
  }

  void release_variables() override {
    const std::lock_guard lock(mutex_);
    for (SavedVariable& saved : saved_) saved.reset_data();
  }

  void compiled_args(torch::autograd::CompiledNodeArgs&) const override {
    TORCH_CHECK(false, "compiled autograd: the backward pass of an mlcc.jit function is compiled "
                       "already");
  }

 protected:
  variable_list apply(variable_list&& gradients) override {
    return with_engine_errors([&] {
      gradient_->check_modes();
      std::vector<c10::IValue> inputs = numbers_;
      inputs.reserve(numbers_.size() + saved_.size() + gradients.size());
      unpack(inputs);
      edge_list edges = at::GradMode::is_enabled() ? edges_of(gradients) : edge_list();
      for (size_t i = 0; i < gradients.size(); ++i) {
        at::Tensor given = std::move(gradients[i]);
        check_transforms(given.defined() && given.key_set().has_any(kBatched));
        if (!given.defined()) given = input_metadata(i).zeros_like();
        inputs.emplace_back(gradient_->as_compiled(i, std::move(given)));
      }
      variable_list results = gradient_->run(std::move(inputs));
      if (at::GradMode::is_enabled()) refuse_derivatives(std::move(edges), results);
      return results;
    });
  }

 private:
  void unpack(std::vector<c10::IValue>& inputs) {
    const std::lock_guard lock(mutex_);
    for (const SavedVariable& saved : saved_) inputs.emplace_back(saved.unpack(getptr()));
    if (!is_last_run_) return;
    for (SavedVariable& saved : saved_) saved.reset_data();
  }

  edge_list edges_of(const variable_list& gradients) {
    edge_list edges = next_edges();
    for (const at::Tensor& gradient : gradients)
      if (gradient.defined() && gradient.requires_grad())
        edges.push_back(torch::autograd::impl::gradient_edge(gradient));
    return edges;
  }

  // In AOTAutograd's words.
  static void refuse_derivatives(edge_list edges, variable_list& results) {
    const NodePointer error = make_node<torch::autograd::Error>(
        "mlcc.jit, as torch.compile with aot_autograd, does not currently support double backward",
        std::move(edges));
    for (at::Tensor& result : results) {
      if (!result.defined()) continue;
      result = unknown_to_autograd(result);
      torch::autograd::set_history(result, error);
    }
  }

  std::shared_ptr<const Gradient> gradient_;
  std::vector<c10::IValue> numbers_;
  std::vector<SavedVariable> saved_;
  bool is_last_run_ = false;
};

c10::IValue constant_of(const py::object& value) { return to_ivalue(value.ptr(), 0); }

std::unique_ptr<c10::SafePyObject> held(py::object object) {
  return std::make_unique<c10::SafePyObject>(object.release().ptr(), getPyInterpreter());
}

py::object object_of(const c10::SafePyObject& held) {
  return py::reinterpret_borrow<py::object>(held.ptr(getPyInterpreter()));
}

}  // namespace

edge_list gradient_edges(const std::vector<c10::IValue>& inputs) {
  edge_list edges;
  edges.reserve(inputs.size());
  for (const c10::IValue& input : inputs)
    edges.push_back(input.isTensor() ? torch::autograd::impl::gradient_edge(input.toTensor())
                                     : torch::autograd::Edge());
  return edges;
}

Gradient::Gradient(const py::dict& facts)
    : tensors_(py::cast<std::vector<size_t>>(facts["tensors"])),
      allows_deterministic_(py::cast<bool>(facts["allows_deterministic"])),
      compile_(held(facts["compile"])) {
  using Sizes = std::vector<int64_t>;
  for (py::handle row : facts["results"]) {
    auto [output, format, sizes, strides] =
        py::cast<std::tuple<size_t, std::optional<at::MemoryFormat>, Sizes, Sizes>>(row);
    results_.push_back({output, format, std::move(sizes), std::move(strides)});
  }
  for (py::handle row : facts["numbers"]) {
    const auto [output, constant, is_float] = py::cast<std::tuple<int64_t, py::object, bool>>(row);
    numbers_.push_back({output, constant_of(constant), is_float});
  }
}

void Gradient::attach(edge_list edges, std::vector<c10::IValue>& outputs) const {
  std::vector<c10::IValue> numbers;
  numbers.reserve(numbers_.size());
  for (const Saved& saved : numbers_)
    numbers.push_back(saved.output < 0 ? saved.constant
                                       : outputs[static_cast<size_t>(saved.output)]);
  const NodePointer node =
      make_node<GradientNode>(shared_from_this(), std::move(edges), std::move(numbers));
  for (const Result& result : results_) {
    at::Tensor tensor = outputs[result.output].toTensor();
    // A view, or one that stands twice among the results.
    if (torch::autograd::impl::get_autograd_meta(tensor) != nullptr) {
      tensor = unknown_to_autograd(tensor);
      outputs[result.output] = tensor;
    }
    torch::autograd::set_history(tensor, node);
  }
  auto& made = static_cast<GradientNode&>(*node);
  made.reserve(tensors_.size());
  for (size_t output : tensors_) made.save(outputs[output].toTensor());
}

at::Tensor Gradient::as_compiled(size_t i, at::Tensor gradient) const {
  const Result& result = results_[i];
  if (result.format)
    return gradient.is_contiguous(*result.format) ? gradient : gradient.contiguous(*result.format);
  if (gradient.sizes() == result.sizes && gradient.strides() == result.strides) return gradient;
  at::Tensor copy = at::empty_strided(result.sizes, result.strides, gradient.options());
  copy.copy_(gradient);
  return copy;
}

void Gradient::check_modes() const {
  check_transforms(
      c10::impl::tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode));
  TORCH_CHECK(allows_deterministic_ || !at::globalContext().deterministicAlgorithms(),
              "This compiled backward function is being run with "
              "torch.use_deterministic_algorithms(True), but it was previously generated during "
              "the forward function while torch.use_deterministic_algorithms(False) was set.");
}

std::vector<at::Tensor> Gradient::run(std::vector<c10::IValue> inputs) const {
  const Backward& backward = this->backward();
  if (backward.program == nullptr) return run_in_python(backward, inputs);
  inputs.insert(inputs.end(), backward.constants.begin(), backward.constants.end());
  const std::vector<c10::IValue> outputs = backward.program->run(std::move(inputs));
  std::vector<at::Tensor> results(backward.outputs.size());
  for (size_t i = 0; i < results.size(); ++i)
    if (backward.outputs[i] >= 0)
      results[i] = outputs[static_cast<size_t>(backward.outputs[i])].toTensor();
  return results;
}

std::vector<at::Tensor> Gradient::run_in_python(const Backward& backward,
                                                const std::vector<c10::IValue>& inputs) const {
  const py::gil_scoped_acquire gil;
  const at::NoGradGuard no_grad;
  py::list given;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const bool is_float = i < numbers_.size() && numbers_[i].is_float;
    given.append(is_float ? py::float_(inputs[i].toTensor().item<double>())
                          : from_ivalue(inputs[i]));
  }
  const py::object outputs = object_of(*backward.function)(given);
  std::vector<at::Tensor> results;
  for (py::handle output : outputs)
    results.push_back(output.is_none() ? at::Tensor() : THPVariable_Unpack(output.ptr()));
  return results;
}

const Gradient::Backward& Gradient::backward() const {
  if (const Backward* made = ready_.load(std::memory_order_acquire)) return *made;
  const py::gil_scoped_acquire gil;
  if (backward_ == nullptr) {
    const py::object compile = object_of(*compile_);
    const py::dict facts = compile();  // other threads may do so, too
    auto made = std::make_unique<Backward>();
    if (facts.contains("executable")) {
      made->program = py::cast<const ExecutableObject&>(facts["executable"]).program;
      made->outputs = py::cast<std::vector<int64_t>>(facts["outputs"]);
      for (py::handle constant : facts["constants"])
        made->constants.emplace_back(THPVariable_Unpack(constant.ptr()));
    } else {
      made->function = held(facts["function"]);
    }
    if (backward_ == nullptr) {
      backward_ = std::move(made);
      compile_.reset();
      ready_.store(backward_.get(), std::memory_order_release);
    }
  }
  return *backward_;
}

}  // namespace mlcc::python
