// One argument of an extern call: what a dispatcher op's schema can take, with tensors as
// references. The reference counts operands of a node in the graph IR, and slots of a call's frame
// in the runtime.
#pragma once

#include <complex>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "types/dtype.h"
#include "types/symbolic.h"

namespace mlcc {

struct ArgNone {
  friend bool operator==(const ArgNone&, const ArgNone&) = default;
};

struct ArgRef {
  int index;
  friend bool operator==(const ArgRef&, const ArgRef&) = default;
};

// A value of one of torch's enumerations by its name: layout "strided", memory_format
// "channels_last", device "cpu", dtype "float32" (all of torch's dtypes, also those that DType
// lacks, e.g. "complex64").
struct ArgEnum {
  std::string kind;
  std::string name;
  friend bool operator==(const ArgEnum&, const ArgEnum&) = default;
};

struct Argument;
using ArgList = std::vector<Argument>;

struct Argument {
  std::variant<ArgNone, ArgRef, bool, SymExpr, double, std::complex<double>, std::string, ArgEnum,
               ArgList>
      value;

  Argument() = default;
  template <typename T>
  Argument(T v) : value(std::move(v)) {}  // NOLINT(google-explicit-constructor)
  friend bool operator==(const Argument&, const Argument&) = default;
};

// The shortest decimal that reads back the same, always with '.', 'e', inf or nan.
std::string print_float(double value);
// Text: none, %-references by the given naming, true, s0*2, 0.5 (floats by print_float), "text",
// layout(strided), device("cuda:0") where the name is no identifier, complex(0.5, -1.0), [a, b].
std::string print_argument(const Argument& argument,
                           const std::function<std::string(int)>& name_of_reference);
// Calls `change` on every reference inside.
void for_each_reference(Argument& argument, const std::function<void(ArgRef&)>& change);
void for_each_reference(const Argument& argument, const std::function<void(const ArgRef&)>& visit);
// Calls `visit` on every size inside.
void for_each_size(const Argument& argument, const std::function<void(const SymExpr&)>& visit);

}  // namespace mlcc
