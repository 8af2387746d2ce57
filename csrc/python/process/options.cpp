#include "python/process/options.h"

#include <pybind11/stl.h>

#include <string>

#include "support/error.h"

namespace mlcc::python {
namespace {

namespace py = pybind11;

// As Options::set reads it, after checking that Python's type is the option's.
std::string text_of(const driver::OptionRow& row, py::handle value) {
  const bool is_bool = py::isinstance<py::bool_>(value);
  const bool fits = row.type == "bool"  ? is_bool
                    : row.type == "int" ? py::isinstance<py::int_>(value) && !is_bool
                                        : py::isinstance<py::str>(value);
  MLCC_USER_CHECK(fits, "option ", row.name, ": expected a value of type ", row.type, ", found ",
                  py::cast<std::string>(py::repr(value)));
  if (is_bool) return py::cast<bool>(value) ? "1" : "0";
  return py::cast<std::string>(py::str(value));
}

const driver::OptionRow* find_row(const std::string& name) {
  for (const driver::OptionRow& row : driver::option_table())
    if (row.name == name) return &row;
  return nullptr;
}

py::object default_of(const driver::OptionRow& row) {
  if (row.type == "bool") return py::bool_(row.default_text == "1");
  if (row.type == "int") return py::int_(std::stoll(row.default_text));
  return py::str(row.default_text);
}

}  // namespace

driver::Options to_options(const py::object& values) {
  const py::object given =
      values.is_none() ? py::module_::import("mlcc.config").attr("resolve")() : values;
  driver::Options options;
  for (const auto& [key, value] : py::cast<py::dict>(given)) {
    const auto name = py::cast<std::string>(key);
    const driver::OptionRow* row = find_row(name);
    options.set(name,
                row == nullptr ? "" : text_of(*row, value));  // names the nearest of an unknown one
  }
  return options;
}

py::list option_table() {
  py::list rows;
  for (const driver::OptionRow& row : driver::option_table()) {
    const char* option_class = row.option_class == driver::OptionClass::code ? "code" : "run";
    rows.append(
        py::make_tuple(row.name, row.type, default_of(row), row.env, option_class, row.help));
  }
  return rows;
}

}  // namespace mlcc::python
