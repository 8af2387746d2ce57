#include "python/run/torch_host.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/as_strided.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/resolve_neg.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <set>
#include <string>
#include <utility>

#include "python/process/device.h"
#include "python/process/parallel.h"
#include "python/process/without_gil.h"
#include "python/tensors/stolen_weights.h"
#include "python/tensors/tensor_allocator.h"
#include "runtime/arena_pool.h"
#include "support/error.h"

namespace mlcc::python {
namespace {

using runtime::Slot;

[[noreturn]] void raise_error(const std::string& exception, const std::string& text) {
  TORCH_CHECK_INDEX(exception != "IndexError", text);
  TORCH_CHECK_VALUE(exception != "ValueError", text);
  TORCH_CHECK_TYPE(exception != "TypeError", text);
  TORCH_CHECK_NOT_IMPLEMENTED(exception != "NotImplementedError", text);
  TORCH_CHECK(false, text);
}

void check_device(size_t index, const at::Tensor& tensor, const runtime::InputSpec& input) {
  const c10::Device expected = to_torch(input.spec.device);
  MLCC_USER_CHECK(tensor.device() == expected, "input ", index, " is on ", tensor.device(),
                  ", expected ", expected);
}

std::string describe(const c10::IValue& value) {
  if (!value.isTensor()) return value.tagKind();
  const at::Tensor& tensor = value.toTensor();
  return mlcc::detail::join(tensor.scalar_type(), tensor.sizes(), " on ", tensor.device());
}

// Whether the elements are not what lies in its memory: those with the negative bit, and zeros that
// have no memory at all, as torch's gradients of `sign` have.
bool is_lazy(const at::Tensor& tensor) { return tensor.is_neg() || tensor._is_zerotensor(); }

// The same elements in memory, at the same strides: kernels are compiled for those. All memory that
// the tensor spans is copied, since elements of it may lie at one place.
at::Tensor resolve(const at::Tensor& given) {
  if (given._is_zerotensor())
    return at::empty_strided(given.sizes(), given.strides(), given.options()).zero_();
  if (given.numel() == 0) return at::resolve_neg(given);
  int64_t span = 1;
  for (int64_t dim = 0; dim < given.dim(); ++dim) span += (given.size(dim) - 1) * given.stride(dim);
  const at::Tensor memory = at::as_strided(given, {span}, {1}, given.storage_offset());
  return make_alias(at::resolve_neg(memory), given.sizes(), given.strides(), 0);
}

}  // namespace

at::Tensor make_alias(const at::Tensor& base, at::IntArrayRef shape, at::IntArrayRef strides,
                      int64_t offset) {
  at::Tensor view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(base.storage()), base.key_set(), base.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(shape, strides, offset);
  if (!base.is_inference())
    impl->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
  return view;
}

// The tensors of one call.
class TensorHost final : public runtime::Host {
 public:
  TensorHost(const TensorProgram& program, std::vector<c10::IValue> inputs,
             std::span<const at::Tensor> places)
      : program_(program), slots_(std::move(inputs)), places_(places) {
    slots_.resize(static_cast<size_t>(program.executable().plan().num_slots));
    for (size_t i = 0; i < program.num_inputs(); ++i) hold_weight(i);
    keeps_promises_ = program.kept_.fill(slots_);  // from the tensors as they are given
    if (!keeps_promises_) return;
    for (size_t i = 0; i < program.num_inputs(); ++i)
      if (program.is_kernel_input_[i]) prepare_input(i);
  }

  // Whether the inputs are what is promised of them; else the call is another program's.
  bool keeps_promises() const { return keeps_promises_; }
  std::vector<c10::IValue> take_inputs() {
    slots_.resize(program_.num_inputs());
    return std::move(slots_);
  }

  std::vector<c10::IValue> take_outputs() {
    for (const auto& [original, resolved] : resolved_) original.copy_(resolved);
    for (Slot slot : program_.executable().plan().written_inputs) count_version(tensor(slot));
    const std::vector<Slot>& outputs = program_.executable().plan().outputs;
    std::vector<c10::IValue> values;
    values.reserve(outputs.size());
    for (Slot slot : outputs) values.push_back(slots_[static_cast<size_t>(slot)]);
    return values;
  }

  void* stream() override {
    return program_.device_.is_cpu() ? nullptr
                                     : current_stream(program_.executable().plan().device);
  }

  void* data(Slot slot) override { return tensor(slot).mutable_data_ptr(); }

  int64_t tensor_size(Slot slot, int dim) override { return tensor(slot).size(dim); }

  int64_t size(Slot slot) override {
    const c10::IValue& value = slots_[static_cast<size_t>(slot)];
    return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt();
  }

  void set_size(Slot slot, int64_t value) override { slots_[static_cast<size_t>(slot)] = value; }

  void allocate(Slot slot, DType dtype, std::span<const int64_t> shape,
                std::span<const int64_t> strides, Device device) override {
    const at::IntArrayRef sizes(shape.data(), shape.size());
    const at::IntArrayRef steps(strides.data(), strides.size());
    if (const at::Tensor* place = place_of(slot); place != nullptr && place->sizes() == sizes &&
                                                  place->strides() == steps &&
                                                  place->scalar_type() == to_torch(dtype)) {
      slots_[static_cast<size_t>(slot)] = *place;
      return;
    }
    slots_[static_cast<size_t>(slot)] =
        empty_strided(sizes, steps, to_torch(dtype), to_torch(device));
  }

  char* take_arena(int64_t bytes) override { return arenas_.take(bytes); }
  void give_back_arena(char* data) override { arenas_.give_back(data); }

  // From torch's caching allocator: what a call frees is used again in the order of the stream, and
  // a graph that captures the call keeps it.
  void* workspace(int64_t bytes) override {
    c10::Allocator* allocator = c10::GetAllocator(program_.device_.type());
    workspaces_.push_back(allocator->allocate(static_cast<size_t>(bytes)));
    return workspaces_.back().get();
  }

  void make_view(Slot slot, Slot base, std::span<const int64_t> shape,
                 std::span<const int64_t> strides, int64_t offset) override {
    const at::Tensor& from = tensor(base);
    const at::IntArrayRef sizes(shape.data(), shape.size());
    const at::IntArrayRef steps(strides.data(), strides.size());
    const int64_t start = from.storage_offset() + offset;
    const bool escapes = program_.is_output_[static_cast<size_t>(slot)];
    slots_[static_cast<size_t>(slot)] =
        escapes ? at::as_strided(from, sizes, steps, start) : make_alias(from, sizes, steps, start);
  }

  void call_extern(const runtime::ExternStep& step, size_t step_index,
                   const std::function<int64_t(const SymExpr&)>& evaluate) override {
    if (program_.control_flow_[step_index] != nullptr)
      program_.control_flow_[step_index]->run(slots_, evaluate);
    else
      program_.extern_calls_[step_index]->run(slots_, evaluate, stack_);
    for (const auto& [slot, device] : program_.kernel_results_[step_index]) {
      MLCC_USER_CHECK(tensor(slot).device() == device, "extern op ", step.op, ": a result is on ",
                      tensor(slot).device(), ", expected ", device);
      // Kernels read memory as it is.
      if (is_lazy(tensor(slot))) slots_[static_cast<size_t>(slot)] = resolve(tensor(slot));
    }
  }

  void release(Slot slot) override { slots_[static_cast<size_t>(slot)] = c10::IValue(); }

  [[noreturn]] void raise(const runtime::KernelError& error, const std::string&) override {
    raise_error(error.exception, error.text);
  }

 private:
  const at::Tensor& tensor(Slot slot) const { return slots_[static_cast<size_t>(slot)].toTensor(); }

  // So that autograd notices a change of what it saved, as after an op of torch.
  static void count_version(const at::Tensor& tensor) {
    if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
  }

  // Where the caller wants the output that lies in this slot.
  const at::Tensor* place_of(Slot slot) const {
    const std::vector<Slot>& outputs = program_.executable().plan().outputs;
    for (size_t i = 0; i < places_.size(); ++i)
      if (outputs[i] == slot && places_[i].defined()) return &places_[i];
    return nullptr;
  }

  // So that its memory is there for the call, unless the call needs none of it.
  void hold_weight(size_t index) {
    if (!slots_[index].isTensor() || program_.kept_.is_replaced(static_cast<Slot>(index))) return;
    const at::Tensor& given = slots_[index].toTensor();
    if (given.defined() && is_watched(given)) weights_.emplace_back(given);
  }

  // A kernel reads memory as it is: a lazy input is computed first, and written back if an op
  // changes it.
  void prepare_input(size_t index) {
    c10::IValue& value = slots_[index];
    MLCC_USER_CHECK(value.isTensor(), "input ", index, ": found ", describe(value),
                    ", expected a tensor");
    const at::Tensor& given = value.toTensor();
    MLCC_USER_CHECK(given.defined() && given.layout() == c10::Layout::Strided &&
                        !given.key_set().has(c10::DispatchKey::Python),
                    "input ", index, ": found ", describe(value), ", expected a plain tensor");
    check_device(index, given, program_.executable().plan().inputs[index]);
    if (!is_lazy(given)) return;
    at::Tensor resolved = resolve(given);
    if (program_.is_mutated_input_[index]) resolved_.emplace_back(given, resolved);
    value = std::move(resolved);
  }

  const TensorProgram& program_;
  Slots slots_;
  std::span<const at::Tensor> places_;
  std::vector<WeightHold> weights_;
  bool keeps_promises_ = true;
  torch::jit::Stack stack_;
  runtime::PooledArenas arenas_;
  c10::SmallVector<at::DataPtr, 1> workspaces_;
  std::vector<std::pair<at::Tensor, at::Tensor>>
      resolved_;  // (as given, the copy that the call changed)
};

TensorProgram::TensorProgram(std::shared_ptr<const runtime::Executable> executable)
    : executable_(std::move(executable)), kept_(executable_->plan()),
      device_(to_torch(executable_->plan().device)) {
  find_extern_calls();
  find_tensor_uses();
}

void TensorProgram::find_extern_calls() {
  const std::vector<runtime::Step>& steps = executable_->plan().steps;
  extern_calls_.resize(steps.size());
  control_flow_.resize(steps.size());
  std::set<std::string> bound;
  for (size_t i = 0; i < steps.size(); ++i) {
    if (const auto* bind = std::get_if<runtime::BindStep>(&steps[i])) bound.insert(bind->symbol);
    const auto* call = std::get_if<runtime::ExternStep>(&steps[i]);
    if (call == nullptr) continue;
    ++num_extern_calls_;
    if (call->regions.empty())
      extern_calls_[i] = std::make_unique<ExternCall>(*call, bound);
    else
      control_flow_[i] = std::make_unique<ControlFlowCall>(*call);
  }
}

void TensorProgram::find_tensor_uses() {
  const runtime::ExecutablePlan& plan = executable_->plan();
  is_output_.assign(static_cast<size_t>(plan.num_slots), false);
  for (Slot slot : plan.outputs) is_output_[static_cast<size_t>(slot)] = true;
  is_kernel_input_.assign(plan.inputs.size(), false);
  is_mutated_input_.assign(plan.inputs.size(), false);
  const auto mark = [&](std::vector<bool>& marks, Slot slot) {
    if (static_cast<size_t>(slot) < marks.size()) marks[static_cast<size_t>(slot)] = true;
  };
  for (Slot slot : plan.written_inputs) mark(is_mutated_input_, slot);
  std::vector<bool> is_read(static_cast<size_t>(plan.num_slots), false);  // by kernels
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    if (const auto* launch = std::get_if<runtime::LaunchStep>(&plan.steps[i])) {
      for (Slot slot : launch->buffers) mark(is_kernel_input_, slot);
      for (Slot slot : launch->buffers) mark(is_read, slot);
    }
    if (const auto* view = std::get_if<runtime::ViewStep>(&plan.steps[i]))
      mark(is_kernel_input_, view->base);
    if (extern_calls_[i] != nullptr)
      for (Slot slot : extern_calls_[i]->mutated()) mark(is_mutated_input_, slot);
  }
  kernel_results_.resize(plan.steps.size());
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const auto* call = std::get_if<runtime::ExternStep>(&plan.steps[i]);
    for (size_t r = 0; call != nullptr && r < call->results.size(); ++r) {
      const Slot slot = call->results[r];
      if (slot >= 0 && call->expected[r] && is_read[static_cast<size_t>(slot)])
        kernel_results_[i].emplace_back(slot, to_torch(call->expected[r]->device));
    }
  }
}

std::vector<c10::IValue> TensorProgram::run(std::vector<c10::IValue> inputs) const {
  MLCC_USER_CHECK(inputs.size() == num_inputs(), "executable: found ", inputs.size(),
                  " inputs, expected ", num_inputs());
  // Where AOTAutograd's own wrappers call compiled code: below autograd, but above ADInplaceOrView,
  // which counts the versions of tensors that are written to and knows views. The graph holds the
  // casts that autocast made.
  const at::AutoDispatchBelowAutograd below_autograd;
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::NoGradGuard no_grad;
  if (device_.is_cpu()) return run_nested(std::move(inputs));
  at::globalContext().lazyInitDevice(device_.type());
  const c10::DeviceGuard device_guard(device_);  // allocations and launches go there
  return run_nested(std::move(inputs));
}

std::vector<c10::IValue> TensorProgram::run_nested(std::vector<c10::IValue> inputs,
                                                   std::span<const at::Tensor> places) const {
  static const runtime::ParallelFor parallel_for = torch_parallel;
  MLCC_CHECK(inputs.size() == num_inputs(), "executable: found ", inputs.size(),
             " inputs, expected ", num_inputs());
  if (const TensorProgram* other = general_.load(); other != nullptr)
    return other->run_nested(std::move(inputs), places);
  TensorHost host(*this, std::move(inputs), places);
  if (!host.keeps_promises()) return general().run_nested(host.take_inputs(), places);
  executable_->run(host, parallel_for);
  return host.take_outputs();
}

const TensorProgram& TensorProgram::general() const {
  std::call_once(make_general_, [&] {
    const ForkBarrier barrier;
    owned_general_ = std::make_unique<const TensorProgram>(executable_->plan().without_promises());
    general_.store(owned_general_.get());
  });
  return *owned_general_;
}

void TensorProgram::check_inputs(const std::vector<c10::IValue>& inputs) const {
  const std::vector<runtime::InputSpec>& specs = executable_->plan().inputs;
  MLCC_USER_CHECK(inputs.size() == num_inputs(), "executable: found ", inputs.size(),
                  " inputs, expected ", num_inputs());
  for (size_t i = 0; i < num_inputs(); ++i) {
    if (specs[i].is_size) {
      MLCC_USER_CHECK(inputs[i].isInt(), "input ", i, ": found ", describe(inputs[i]),
                      ", expected an int");
      continue;
    }
    const runtime::TensorSpec& spec = specs[i].spec;
    const bool fits = inputs[i].isTensor() &&
                      inputs[i].toTensor().scalar_type() == to_torch(spec.dtype) &&
                      inputs[i].toTensor().dim() == static_cast<int64_t>(spec.shape.size());
    MLCC_USER_CHECK(fits, "input ", i, ": found ", describe(inputs[i]), ", expected ",
                    to_torch(spec.dtype), " of rank ", spec.shape.size());
    check_device(i, inputs[i].toTensor(), specs[i]);
  }
}

}  // namespace mlcc::python
