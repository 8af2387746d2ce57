#include "python/run/extern_call.h"

#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "python/tensors/tensor_allocator.h"
#include "runtime/block_pool.h"
#include "support/error.h"
#include "support/logging.h"

namespace mlcc::python {
namespace {

// "aten.addmm.out" is aten::addmm with overload "out"; "default" stands for the overload without a
// name. Operator names of other libraries may contain dots themselves ("my.lib.op.default"): the
// first dot ends the namespace, the last one begins the overload.
c10::OperatorName operator_name(const std::string& name) {
  const size_t first = name.find('.');
  const size_t last = name.rfind('.');
  MLCC_USER_CHECK(first != std::string::npos && first < last, "extern op ", name,
                  ": expected a name like aten.addmm.default");
  std::string overload = name.substr(last + 1);
  if (overload == "default") overload.clear();
  return {name.substr(0, first) + "::" + name.substr(first + 1, last - first - 1),
          std::move(overload)};
}

c10::OperatorHandle find_operator(const std::string& name) {
  const auto op = c10::Dispatcher::singleton().findSchema(operator_name(name));
  MLCC_USER_CHECK(op.has_value(), "extern op ", name, ": torch knows no such op");
  return *op;
}

std::string describe(c10::ScalarType dtype, at::IntArrayRef shape) {
  std::ostringstream stream;
  stream << dtype << shape;
  return stream.str();
}

}  // namespace

int64_t ExternCall::ExpectedNumber::evaluate(const Evaluate& evaluate) const {
  return kind == Kind::kConstant ? value : evaluate(*expression);
}

bool ExternCall::ExpectedTensor::is_empty() const {
  return shape.size() == 1 && shape[0].kind == ExpectedNumber::Kind::kConstant &&
         shape[0].value == 0;
}

ExternCall::ExternCall(const runtime::ExternStep& step, const std::set<std::string>& bound)
    : step_(step), op_(find_operator(step.op)) {
  bind_arguments();
  expect_results(bound);
  find_out_form();
}

void ExternCall::bind_arguments() {
  const std::vector<c10::Argument>& parameters = op_.schema().arguments();
  MLCC_USER_CHECK(step_.args.size() <= parameters.size(), "extern op ", step_.op, ": found ",
                  step_.args.size(), " arguments, expected at most ", parameters.size());
  constants_.resize(parameters.size());
  std::vector<bool> given(parameters.size(), false);
  for (size_t i = 0; i < step_.args.size(); ++i) {
    bind_argument(i, step_.args[i]);
    given[i] = true;
  }
  for (const auto& [name, argument] : step_.kwargs) {
    const std::optional<int> position = op_.schema().argumentIndexWithName(name);
    MLCC_USER_CHECK(position.has_value(), "extern op ", step_.op, ": no argument is named ", name);
    const auto index = static_cast<size_t>(*position);
    MLCC_USER_CHECK(!given[index], "extern op ", step_.op, ": argument ", name, " is given twice");
    bind_argument(index, argument);
    given[index] = true;
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (given[i]) continue;
    MLCC_USER_CHECK(parameters[i].default_value().has_value(), "extern op ", step_.op,
                    ": argument ", parameters[i].name(), " is missing");
    constants_[i] = *parameters[i].default_value();
  }
}

void ExternCall::bind_argument(size_t position, const Argument& argument) {
  const c10::Argument& parameter = op_.schema().arguments()[position];
  const c10::Type& type = *parameter.real_type();
  if (parameter.alias_info() != nullptr && parameter.alias_info()->isWrite())
    for_each_reference(argument, [&](const ArgRef& ref) { mutated_.push_back(ref.index); });
  if (is_constant(argument)) {
    constants_[position] = convert(ArgumentConverter(nullptr, nullptr), position, argument);
    return;
  }
  const auto* reference = std::get_if<ArgRef>(&argument.value);
  if (reference != nullptr && is_tensor_type(type)) {
    tensors_.emplace_back(position, reference->index);
  } else {
    dynamic_.push_back({position, &argument});
  }
}

c10::IValue ExternCall::convert(const ArgumentConverter& converter, size_t position,
                                const Argument& argument) const {
  const c10::Argument& parameter = op_.schema().arguments()[position];
  try {
    return converter.convert(argument, *parameter.real_type(), parameter.N());
  } catch (const Error& error) {
    throw Error(
        detail::join("extern op ", step_.op, ": argument ", parameter.name(), ": ", error.what()));
  }
}

void ExternCall::expect_results(const std::set<std::string>& bound) {
  const auto number = [&](const SymExpr& expr) -> ExpectedNumber {
    if (expr.is_constant()) return {ExpectedNumber::Kind::kConstant, *expr.as_constant(), nullptr};
    const std::vector<std::string> symbols = expr.symbols();
    const bool is_known = std::all_of(symbols.begin(), symbols.end(),
                                      [&](const std::string& s) { return bound.contains(s); });
    return {is_known ? ExpectedNumber::Kind::kExpression : ExpectedNumber::Kind::kUnchecked, 0,
            &expr};
  };
  expected_.resize(step_.results.size());
  for (size_t i = 0; i < std::min(step_.results.size(), step_.expected.size()); ++i) {
    if (!step_.expected[i]) continue;
    ExpectedTensor& tensor = expected_[i].emplace();
    tensor.dtype = to_torch(step_.expected[i]->dtype);
    for (const SymExpr& size : step_.expected[i]->shape) tensor.shape.push_back(number(size));
    for (const SymExpr& stride : step_.expected[i]->strides)
      tensor.strides.push_back(number(stride));
  }
}

// Ops whose form with `out` is the same code: others may allocate a result and copy it.
void ExternCall::find_out_form() {
  static const std::set<std::string, std::less<>> kOps = {
      "aten.mm.default", "aten.addmm.default", "aten.bmm.default", "aten.baddbmm.default"};
  if (!kOps.contains(step_.op) || expected_.size() != 1 || !expected_[0] ||
      step_.expected[0]->device.kind != DeviceKind::kCpu)
    return;
  const auto is_known = [](const ExpectedNumber& size) {
    return size.kind != ExpectedNumber::Kind::kUnchecked;
  };
  const ExpectedTensor& expected = *expected_[0];
  if (expected.strides.size() == expected.shape.size() && step_.results[0] >= 0 &&
      std::all_of(expected.shape.begin(), expected.shape.end(), is_known) &&
      std::all_of(expected.strides.begin(), expected.strides.end(), is_known))
    out_form_ = c10::Dispatcher::singleton().findSchema({op_.schema().name(), "out"});
}

// Memory of our own pool for a result that is large and dense in row-major order, as the op itself
// would make it: torch's own would be mapped and cleared anew at each call.
std::optional<at::Tensor> ExternCall::large_result(const Evaluate& evaluate) const {
  const ExpectedTensor& expected = *expected_[0];
  const size_t rank = expected.shape.size();
  std::array<int64_t, 3> shape{}, strides{};  // enough for the ops with such a form
  if (rank > shape.size()) return std::nullopt;
  int64_t elements = 1;
  for (size_t d = rank; d-- > 0;) {
    shape[d] = expected.shape[d].evaluate(evaluate);
    strides[d] = elements;
    if (shape[d] != 1 && expected.strides[d].evaluate(evaluate) != elements) return std::nullopt;
    elements *= shape[d];
  }
  const auto bytes = elements * static_cast<int64_t>(c10::elementSize(expected.dtype));
  if (bytes < runtime::kLargeBlockBytes) return std::nullopt;
  return empty_strided({shape.data(), rank}, {strides.data(), rank}, expected.dtype, c10::kCPU);
}

void ExternCall::run(Slots& slots, const Evaluate& evaluate, torch::jit::Stack& stack) const {
  stack.assign(constants_.begin(), constants_.end());
  for (const auto& [position, slot] : tensors_) {
    const c10::IValue& value = slots[static_cast<size_t>(slot)];
    stack[position] = is_number(value) ? wrapped_number(value) : value;
  }
  const ArgumentConverter converter(&slots, &evaluate);
  for (const DynamicArgument& dynamic : dynamic_)
    stack[dynamic.position] = convert(converter, dynamic.position, *dynamic.argument);
  if (std::optional<at::Tensor> result = out_form_ ? large_result(evaluate) : std::nullopt) {
    stack.push_back(*std::move(result));
    out_form_->callBoxed(stack);
  } else {
    op_.callBoxed(stack);
  }
  take_results(slots, evaluate, stack);
  stack.clear();
}

// Lists of tensors count as so many results.
void ExternCall::take_results(Slots& slots, const Evaluate& evaluate,
                              torch::jit::Stack& stack) const {
  size_t index = 0;
  for (c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector())
        put_result(index++, tensor, slots, evaluate);
    } else {
      put_result(index++, std::move(value), slots, evaluate);
    }
  }
  MLCC_USER_CHECK(index >= step_.results.size(), "extern op ", step_.op, ": gave ", index,
                  " results, expected ", step_.results.size());
}

void ExternCall::put_result(size_t index, c10::IValue value, Slots& slots,
                            const Evaluate& evaluate) const {
  if (index >= step_.results.size() || step_.results[index] < 0) return;
  const auto slot = static_cast<size_t>(step_.results[index]);
  if (!expected_[index]) {
    slots[slot] = std::move(value);
    return;
  }
  if (value.isNone() || (value.isTensor() && !value.toTensor().defined())) {
    // The graph has an empty tensor where a result is left out.
    MLCC_USER_CHECK(expected_[index]->is_empty(), "extern op ", step_.op, ": result ", index,
                    " is no tensor, expected one");
    slots[slot] = c10::IValue();
    return;
  }
  MLCC_USER_CHECK(value.isTensor(), "extern op ", step_.op, ": result ", index, " is a ",
                  value.tagKind(), ", expected a tensor");
  slots[slot] = checked(index, std::move(value).toTensor(), evaluate);
}

at::Tensor ExternCall::checked(size_t index, at::Tensor tensor, const Evaluate& evaluate) const {
  using Kind = ExpectedNumber::Kind;
  const ExpectedTensor& expected = *expected_[index];
  const at::IntArrayRef sizes = tensor.sizes();
  bool has_shape = sizes.size() == expected.shape.size();
  for (size_t d = 0; has_shape && d < sizes.size(); ++d)
    has_shape = expected.shape[d].kind == Kind::kUnchecked ||
                expected.shape[d].evaluate(evaluate) == sizes[d];
  if (!has_shape || tensor.scalar_type() != expected.dtype) {
    std::vector<int64_t> shape;
    for (const ExpectedNumber& size : expected.shape)
      shape.push_back(size.kind == Kind::kUnchecked ? -1 : size.evaluate(evaluate));
    throw Error(detail::join("extern op ", step_.op, ": result ", index, " is ",
                             describe(tensor.scalar_type(), sizes), ", expected ",
                             describe(expected.dtype, shape)));
  }
  if (tensor.layout() != c10::Layout::Strided || tensor.numel() == 0) return tensor;
  if (expected.strides.empty()) return tensor;
  const at::IntArrayRef strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    const ExpectedNumber& stride = expected.strides[d];
    if (sizes[d] == 1) continue;
    const int64_t wanted = stride.kind == Kind::kUnchecked
                               ? expected_strides(index, tensor, evaluate)[d]
                               : stride.evaluate(evaluate);
    if (wanted == strides[d]) continue;
    return restrided(index, tensor, evaluate);
  }
  return tensor;
}

// They may depend on sizes that only this result's own shape tells.
std::vector<int64_t> ExternCall::expected_strides(size_t index, const at::Tensor& tensor,
                                                  const Evaluate& evaluate) const {
  const runtime::TensorSpec& spec = *step_.expected[index];
  const auto size_of = [&](std::string_view name) {
    for (size_t d = 0; d < spec.shape.size(); ++d)
      if (spec.shape[d].as_symbol() == name) return tensor.size(static_cast<int64_t>(d));
    return evaluate(SymExpr::symbol(std::string(name)));
  };
  std::vector<int64_t> strides;
  for (const SymExpr& stride : spec.strides) strides.push_back(stride.evaluate(size_of));
  return strides;
}

at::Tensor ExternCall::restrided(size_t index, const at::Tensor& tensor,
                                 const Evaluate& evaluate) const {
  const std::vector<int64_t> strides = expected_strides(index, tensor, evaluate);
  MLCC_USER_CHECK(!step_.aliases, "extern op ", step_.op, ": result ", index, " has strides ",
                  tensor.strides(), ", expected ", at::IntArrayRef(strides));
  if (!told_restride_.exchange(true))
    log(LogChannel::kFallback, "extern op ", step_.op, ": result ", index, " has strides ",
        tensor.strides(), ", expected ", at::IntArrayRef(strides), "; it is copied");
  at::Tensor copy = at::empty_strided(tensor.sizes(), strides, tensor.options());
  copy.copy_(tensor);
  return copy;
}

}  // namespace mlcc::python
