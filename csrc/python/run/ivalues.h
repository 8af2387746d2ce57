// Arguments of extern calls as the IValues that torch's dispatcher takes.
#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "types/argument.h"
#include "types/dtype.h"

namespace mlcc::python {

using Slots = std::vector<c10::IValue>;
using Evaluate = std::function<int64_t(const SymExpr&)>;

c10::ScalarType to_torch(DType dtype);

// An int, a float, a complex number or a bool.
bool is_number(const c10::IValue& value);
// A number where the schema wants a tensor: 0-d, and marked as a number for type promotion.
c10::IValue wrapped_number(const c10::IValue& number);

bool is_tensor_type(const c10::Type& type);  // Tensor or Tensor?
bool is_constant(const Argument& argument);  // holds no reference and no symbol

// Builds IValues of the types that schemas name (their real types: ScalarType, not int).
class ArgumentConverter {
 public:
  // References count `slots`. Both may be null if only constant arguments are converted.
  ArgumentConverter(const Slots* slots, const Evaluate* evaluate)
      : slots_(slots), evaluate_(evaluate) {}

  // `length` is that of a list type which takes a single value for all its elements ("int[2]").
  // Error, without the name of op and argument, if the type does not take the argument.
  c10::IValue convert(const Argument& argument, const c10::Type& type,
                      std::optional<int32_t> length) const;

 private:
  c10::IValue convert_scalar(const Argument& argument, const c10::Type& type) const;
  c10::IValue convert_list(const Argument& argument, const c10::ListType& type,
                           std::optional<int32_t> length) const;
  c10::IValue convert_elements(const ArgList& elements, const c10::ListType& type) const;
  c10::IValue plain_value(const Argument& argument) const;
  template <typename T>
  c10::IValue list_of(const ArgList& elements, const c10::Type& type) const;

  const Slots* slots_;
  const Evaluate* evaluate_;
};

}  // namespace mlcc::python
