#include "python/run/ivalues.h"

#include <ATen/ScalarOps.h>
#include <ATen/core/List.h>
#include <c10/core/Device.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "support/error.h"

namespace mlcc::python {
namespace {

using c10::TypeKind;

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

// In the order of DType.
constexpr std::array<c10::ScalarType, kNumDTypes> kScalarTypes = {
    c10::ScalarType::Bool,
    c10::ScalarType::Byte,
    c10::ScalarType::Char,
    c10::ScalarType::Short,
    c10::ScalarType::Int,
    c10::ScalarType::Long,
    c10::ScalarType::Half,
    c10::ScalarType::BFloat16,
    c10::ScalarType::Float,
    c10::ScalarType::Double,
    c10::ScalarType::UInt16,
    c10::ScalarType::UInt32,
    c10::ScalarType::UInt64,
    c10::ScalarType::Float8_e4m3fn,
    c10::ScalarType::Float8_e4m3fnuz,
    c10::ScalarType::Float8_e5m2,
    c10::ScalarType::Float8_e5m2fnuz,
    c10::ScalarType::Float8_e8m0fnu,
    c10::ScalarType::ComplexHalf,
    c10::ScalarType::ComplexFloat,
    c10::ScalarType::ComplexDouble,
};

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

bool is_one_of(TypeKind kind, TypeKind a, TypeKind b) { return kind == a || kind == b; }

// What Python's callers may write instead of the type itself.
c10::IValue adapted(c10::IValue value, TypeKind kind) {
  if (kind == TypeKind::TensorType && value.isNone()) return at::Tensor();
  if (kind == TypeKind::TensorType && is_number(value)) return wrapped_number(value);
  // A Python float that the graph computes is a tensor of the CPU without dimensions.
  if (value.isTensor() && is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType))
    return value.toTensor().item().toDouble();
  if (value.isTensor() && kind == TypeKind::NumberType) return value.toTensor().item();
  if (is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType) && value.isInt())
    return static_cast<double>(value.toInt());
  if (is_one_of(kind, TypeKind::BoolType, TypeKind::SymBoolType) && value.isInt())
    return value.toInt() != 0;
  if (is_one_of(kind, TypeKind::IntType, TypeKind::SymIntType) && value.isBool())
    return static_cast<int64_t>(value.toBool());
  if (kind == TypeKind::DeviceObjType && value.isString()) return c10::Device(value.toStringRef());
  return value;
}

bool fits(const c10::IValue& value, TypeKind kind) {
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

}  // namespace

c10::ScalarType to_torch(DType dtype) { return kScalarTypes[static_cast<size_t>(dtype)]; }

bool is_number(const c10::IValue& value) {
  return value.isInt() || value.isDouble() || value.isBool() || value.isComplexDouble();
}

c10::IValue wrapped_number(const c10::IValue& number) {
  return at::native::wrapped_scalar_tensor(number.toScalar());
}

bool is_tensor_type(const c10::Type& type) {
  if (const auto* optional = type.castRaw<c10::OptionalType>())
    return optional->getElementType()->kind() == TypeKind::TensorType;
  return type.kind() == TypeKind::TensorType;
}

bool is_constant(const Argument& argument) {
  if (std::holds_alternative<ArgRef>(argument.value)) return false;
  if (const auto* expr = std::get_if<SymExpr>(&argument.value)) return expr->is_constant();
  if (const auto* list = std::get_if<ArgList>(&argument.value))
    return std::all_of(list->begin(), list->end(), is_constant);
  return true;
}

c10::IValue ArgumentConverter::convert(const Argument& argument, const c10::Type& type,
                                       std::optional<int32_t> length) const {
  if (const auto* optional = type.castRaw<c10::OptionalType>()) {
    if (std::holds_alternative<ArgNone>(argument.value)) return {};
    return convert(argument, *optional->getElementType(), length);
  }
  if (const auto* list = type.castRaw<c10::ListType>())
    return convert_list(argument, *list, length);
  return convert_scalar(argument, type);
}

c10::IValue ArgumentConverter::convert_scalar(const Argument& argument,
                                              const c10::Type& type) const {
  c10::IValue value = adapted(plain_value(argument), type.kind());
  MLCC_USER_CHECK(fits(value, type.kind()), "found a ", value.tagKind(), " where the schema has ",
                  type.str());
  return value;
}

// As the argument is, whatever the schema wants.
c10::IValue ArgumentConverter::plain_value(const Argument& argument) const {
  struct Visitor {
    const ArgumentConverter& converter;
    c10::IValue operator()(const ArgNone&) const { return {}; }
    c10::IValue operator()(const ArgRef& reference) const {
      return (*converter.slots_)[static_cast<size_t>(reference.index)];
    }
    c10::IValue operator()(const SymExpr& expr) const {
      return expr.is_constant() ? *expr.as_constant() : (*converter.evaluate_)(expr);
    }
    c10::IValue operator()(bool value) const { return value; }
    c10::IValue operator()(double value) const { return value; }
    c10::IValue operator()(const std::complex<double>& value) const {
      return c10::complex<double>(value);
    }
    c10::IValue operator()(const std::string& value) const { return value; }
    c10::IValue operator()(const ArgEnum& value) const { return enum_value(value); }
    c10::IValue operator()(const ArgList&) const {
      throw Error("a list where the schema has none");
    }
  };
  return std::visit(Visitor{*this}, argument.value);
}

c10::IValue ArgumentConverter::convert_list(const Argument& argument, const c10::ListType& type,
                                            std::optional<int32_t> length) const {
  if (const auto* elements = std::get_if<ArgList>(&argument.value))
    return convert_elements(*elements, type);
  const auto* reference = std::get_if<ArgRef>(&argument.value);
  if (reference != nullptr && (*slots_)[static_cast<size_t>(reference->index)].isList())
    return (*slots_)[static_cast<size_t>(reference->index)];
  // "int[2] stride" takes 1 for [1, 1].
  MLCC_USER_CHECK(length.has_value(), "a single value where the schema has ", type.str());
  return convert_elements(ArgList(static_cast<size_t>(*length), argument), type);
}

c10::IValue ArgumentConverter::convert_elements(const ArgList& elements,
                                                const c10::ListType& type) const {
  const c10::Type& element = *type.getElementType();
  const TypeKind kind = element.kind();
  if (is_one_of(kind, TypeKind::IntType, TypeKind::SymIntType))
    return list_of<int64_t>(elements, element);
  if (is_one_of(kind, TypeKind::FloatType, TypeKind::SymFloatType))
    return list_of<double>(elements, element);
  if (kind == TypeKind::BoolType) return list_of<bool>(elements, element);
  if (kind == TypeKind::StringType) return list_of<std::string>(elements, element);
  if (kind == TypeKind::TensorType) return list_of<at::Tensor>(elements, element);
  if (kind == TypeKind::OptionalType && is_tensor_type(element))
    return list_of<std::optional<at::Tensor>>(elements, element);
  c10::impl::GenericList list(type.getElementType());
  for (const Argument& argument : elements)
    list.push_back(convert(argument, element, std::nullopt));
  return list;
}

template <typename T>
c10::IValue ArgumentConverter::list_of(const ArgList& elements, const c10::Type& type) const {
  c10::List<T> list;
  list.reserve(elements.size());
  for (const Argument& element : elements)
    list.push_back(convert(element, type, std::nullopt).template to<T>());
  return list;
}

}  // namespace mlcc::python
