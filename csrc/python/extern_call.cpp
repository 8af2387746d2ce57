#include "python/extern_call.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "support/error.h"
#include "support/logging.h"

namespace mlcc::python {
namespace {

using c10::TypeKind;
using runtime::Slot;

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

template <typename E>
struct Named {
  std::string_view name;
  E value;
};

constexpr std::array<Named<c10::Layout>, 7> kLayouts = {{
    {"strided", c10::Layout::Strided},
    {"sparse_coo", c10::Layout::Sparse},
    {"sparse_csr", c10::Layout::SparseCsr},
    {"sparse_csc", c10::Layout::SparseCsc},
    {"sparse_bsr", c10::Layout::SparseBsr},
    {"sparse_bsc", c10::Layout::SparseBsc},
    {"_mkldnn", c10::Layout::Mkldnn},
}};

constexpr std::array<Named<c10::MemoryFormat>, 4> kMemoryFormats = {{
    {"contiguous_format", c10::MemoryFormat::Contiguous},
    {"preserve_format", c10::MemoryFormat::Preserve},
    {"channels_last", c10::MemoryFormat::ChannelsLast},
    {"channels_last_3d", c10::MemoryFormat::ChannelsLast3d},
}};

template <typename E, size_t N>
c10::IValue named_value(const std::array<Named<E>, N>& table, const ArgEnum& name) {
  for (const auto& row : table)
    if (row.name == name.name) return static_cast<int64_t>(row.value);
  throw Error(detail::join(name.kind, " ", name.name, ": unknown"));
}

c10::IValue scalar_type_value(const ArgEnum& value) {
  const auto& names = c10::getStringToDtypeMap();
  const auto it = names.find(value.name);
  MLCC_USER_CHECK(it != names.end(), "dtype ", value.name, ": unknown");
  return static_cast<int64_t>(it->second);
}

c10::IValue enum_value(const ArgEnum& value) {
  if (value.kind == "dtype") return scalar_type_value(value);
  if (value.kind == "layout") return named_value(kLayouts, value);
  if (value.kind == "memory_format") return named_value(kMemoryFormats, value);
  if (value.kind == "device") return c10::Device(value.name);
  throw Error(detail::join("argument ", value.kind, "(", value.name, "): unknown kind"));
}

// A number where the schema wants a tensor: 0-d, and marked as a number for type promotion.
c10::IValue wrapped_number(const c10::IValue& number) {
  return at::native::wrapped_scalar_tensor(number.toScalar());
}

bool is_tensor_type(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>())
    return optional->getElementType()->kind() == TypeKind::TensorType;
  return type.kind() == TypeKind::TensorType;
}

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool();
}

bool is_one_of(TypeKind kind, TypeKind a, TypeKind b) { return kind == a || kind == b; }

bool is_constant(const Argument& argument) {
  if (std::holds_alternative<ArgRef>(argument.value)) return false;
  if (const auto* expr = std::get_if<SymExpr>(&argument.value)) return expr->is_constant();
  if (const auto* list = std::get_if<ArgList>(&argument.value))
    return std::all_of(list->begin(), list->end(), is_constant);
  return true;
}

std::string describe(c10::ScalarType dtype, at::IntArrayRef shape) {
  std::ostringstream stream;
  stream << dtype << shape;
  return stream.str();
}

}  // namespace

// Builds IValues of the types that schemas name.
class ArgumentConverter {
 public:
  ArgumentConverter(const Slots* slots, const Evaluate* evaluate)
      : slots_(slots), evaluate_(evaluate) {}

  c10::IValue convert(const Argument& argument, const c10::Type& type,
                      std::optional<int32_t> length) const {
    if (const auto* optional = type.castRaw<c10::OptionalType>()) {
      if (std::holds_alternative<ArgNone>(argument.value)) return {};
      return convert(argument, *optional->getElementType(), length);
    }
    if (const auto* list = type.castRaw<c10::ListType>())
      return convert_list(argument, *list, length);
    return convert_scalar(argument, type);
  }

 private:
  c10::IValue convert_scalar(const Argument& argument, const c10::Type& type) const {
    c10::IValue value = adapted(plain_value(argument), type.kind());
    MLCC_USER_CHECK(fits(value, type.kind()), "found a ", value.tagKind(), " where the schema has ",
                    type.str());
    return value;
  }

  // What Python's callers may write instead of the type itself.
  static c10::IValue adapted(c10::IValue value, TypeKind kind) {
    if (kind == TypeKind::TensorType && value.isNone()) return at::Tensor();
    if (kind == TypeKind::TensorType && is_number(value)) return wrapped_number(value);
    if (is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType) && value.isInt())
      return static_cast<double>(value.toInt());
    if (is_one_of(kind, TypeKind::BoolType, TypeKind::SymBoolType) && value.isInt())
      return value.toInt() != 0;
    if (is_one_of(kind, TypeKind::IntType, TypeKind::SymIntType) && value.isBool())
      return static_cast<int64_t>(value.toBool());
    if (kind == TypeKind::DeviceObjType && value.isString())
      return c10::Device(value.toStringRef());
    return value;
  }

  static bool fits(const c10::IValue& value, TypeKind kind) {
    if (kind == TypeKind::TensorType) return value.isTensor();
    if (kind == TypeKind::NumberType) return is_number(value);
    if (kind == TypeKind::StringType) return value.isString();
    if (kind == TypeKind::DeviceObjType) return value.isDevice();
    if (is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType)) return value.isDouble();
    if (is_one_of(kind, TypeKind::BoolType, TypeKind::SymBoolType)) return value.isBool();
    const bool is_integer = is_one_of(kind, TypeKind::IntType, TypeKind::SymIntType) ||
                            is_one_of(kind, TypeKind::LayoutType, TypeKind::MemoryFormatType) ||
                            kind == TypeKind::ScalarTypeType;
    return !is_integer || value.isInt();
  }

  // As the argument is, whatever the schema wants.
  c10::IValue plain_value(const Argument& argument) const {
    struct Visitor {
      const ArgumentConverter& converter;
      c10::IValue operator()(const ArgNone&) const { return {}; }
      c10::IValue operator()(const ArgRef& ref) const {
        return (*converter.slots_)[static_cast<size_t>(ref.index)];
      }
      c10::IValue operator()(bool value) const { return value; }
      c10::IValue operator()(const SymExpr& expr) const {
        return expr.is_constant() ? *expr.as_constant() : (*converter.evaluate_)(expr);
      }
      c10::IValue operator()(double value) const { return value; }
      c10::IValue operator()(const std::string& value) const { return value; }
      c10::IValue operator()(const ArgEnum& value) const { return enum_value(value); }
      c10::IValue operator()(const ArgList&) const {
        throw Error("a list where the schema has none");
      }
    };
    return std::visit(Visitor{*this}, argument.value);
  }

  c10::IValue convert_list(const Argument& argument, const c10::ListType& type,
                           std::optional<int32_t> length) const {
    const c10::Type& element = *type.getElementType();
    const auto* given = std::get_if<ArgList>(&argument.value);
    ArgList repeated;
    if (given == nullptr) {
      // "int[2] stride" takes 1 for [1, 1].
      MLCC_USER_CHECK(length.has_value(), "a single value where the schema has ", type.str());
      repeated.assign(static_cast<size_t>(*length), argument);
      given = &repeated;
    }
    const TypeKind kind = element.kind();
    if (is_one_of(kind, TypeKind::IntType, TypeKind::SymIntType))
      return list_of<int64_t>(*given, element);
    if (is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType))
      return list_of<double>(*given, element);
    if (kind == TypeKind::BoolType) return list_of<bool>(*given, element);
    if (kind == TypeKind::StringType) return list_of<std::string>(*given, element);
    if (kind == TypeKind::TensorType) return list_of<at::Tensor>(*given, element);
    if (kind == TypeKind::OptionalType && is_tensor_type(element))
      return optional_tensors(*given, element);
    return generic_list(*given, type);
  }

  template <typename T>
  c10::IValue list_of(const ArgList& elements, const c10::Type& type) const {
    c10::List<T> list;
    list.reserve(elements.size());
    for (const Argument& element : elements)
      list.push_back(convert(element, type, std::nullopt).to<T>());
    return list;
  }

  c10::IValue optional_tensors(const ArgList& elements, const c10::Type& type) const {
    c10::List<std::optional<at::Tensor>> list;
    list.reserve(elements.size());
    for (const Argument& element : elements)
      list.push_back(convert(element, type, std::nullopt).to<std::optional<at::Tensor>>());
    return list;
  }

  c10::IValue generic_list(const ArgList& elements, const c10::ListType& type) const {
    c10::impl::GenericList list(type.getElementType());
    for (const Argument& element : elements)
      list.push_back(convert(element, *type.getElementType(), std::nullopt));
    return list;
  }

  const Slots* slots_;
  const Evaluate* evaluate_;
};

c10::ScalarType to_torch(DType dtype) {
  switch (dtype) {
  case DType::kBool: return c10::ScalarType::Bool;
  case DType::kU8: return c10::ScalarType::Byte;
  case DType::kI8: return c10::ScalarType::Char;
  case DType::kI16: return c10::ScalarType::Short;
  case DType::kI32: return c10::ScalarType::Int;
  case DType::kI64: return c10::ScalarType::Long;
  case DType::kF16: return c10::ScalarType::Half;
  case DType::kBF16: return c10::ScalarType::BFloat16;
  case DType::kF32: return c10::ScalarType::Float;
  case DType::kF64: return c10::ScalarType::Double;
  }
  MLCC_UNREACHABLE("dtype ", static_cast<int>(dtype));
}

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

void ExternCall::run(Slots& slots, const Evaluate& evaluate, torch::jit::Stack& stack) const {
  stack.assign(constants_.begin(), constants_.end());
  for (const auto& [position, slot] : tensors_) {
    const c10::IValue& value = slots[static_cast<size_t>(slot)];
    stack[position] = is_number(value) ? wrapped_number(value) : value;
  }
  const ArgumentConverter converter(&slots, &evaluate);
  for (const DynamicArgument& dynamic : dynamic_)
    stack[dynamic.position] = convert(converter, dynamic.position, *dynamic.argument);
  op_.callBoxed(stack);
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
  const at::IntArrayRef strides = tensor.strides();
  for (size_t d = 0; d < sizes.size(); ++d) {
    const ExpectedNumber& stride = expected.strides[d];
    if (sizes[d] == 1 || stride.kind == Kind::kUnchecked || stride.evaluate(evaluate) == strides[d])
      continue;
    return restrided(index, tensor, evaluate);
  }
  return tensor;
}

at::Tensor ExternCall::restrided(size_t index, const at::Tensor& tensor,
                                 const Evaluate& evaluate) const {
  std::vector<int64_t> strides;
  for (const ExpectedNumber& stride : expected_[index]->strides) {
    MLCC_USER_CHECK(stride.kind != ExpectedNumber::Kind::kUnchecked, "extern op ", step_.op,
                    ": result ", index, " has strides ", tensor.strides(),
                    " that cannot be corrected before all sizes are known");
    strides.push_back(stride.evaluate(evaluate));
  }
  MLCC_USER_CHECK(!step_.aliases, "extern op ", step_.op, ": result ", index, " has strides ",
                  tensor.strides(), ", expected ", at::IntArrayRef(strides));
  if (!told_restride_.exchange(true))
    log(LogChannel::kFallback, "extern op ", step_.op, ": result ", index, " has strides ",
        tensor.strides(), ", expected ", at::IntArrayRef(strides), "; it is copied");
  at::Tensor copy(at::detail::empty_strided_cpu(tensor.sizes(), strides, tensor.scalar_type()));
  copy.copy_(tensor);
  return copy;
}

}  // namespace mlcc::python
