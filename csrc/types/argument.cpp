#include "types/argument.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "support/error.h"
#include "support/lexer.h"

namespace mlcc {
namespace {

bool is_identifier(const std::string& name) {
  const auto is_word = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
  };
  return !name.empty() && !(name[0] >= '0' && name[0] <= '9') &&
         std::all_of(name.begin(), name.end(), is_word);
}

// One alternative of the variant each.
struct Printer {
  const std::function<std::string(int)>& name_of_reference;

  std::string operator()(ArgNone) const { return "none"; }
  std::string operator()(const ArgRef& reference) const {
    return name_of_reference(reference.index);
  }
  std::string operator()(bool value) const { return value ? "true" : "false"; }
  std::string operator()(const SymExpr& value) const { return value.str(); }
  std::string operator()(double value) const { return print_float(value); }
  std::string operator()(const std::complex<double>& value) const {
    return "complex(" + print_float(value.real()) + ", " + print_float(value.imag()) + ")";
  }
  std::string operator()(const std::string& value) const { return quote(value); }
  std::string operator()(const ArgEnum& value) const {
    return value.kind + "(" + (is_identifier(value.name) ? value.name : quote(value.name)) + ")";
  }
  std::string operator()(const ArgList& list) const {
    std::string text = "[";
    for (const Argument& argument : list)
      text += (text.size() > 1 ? ", " : "") + print_argument(argument, name_of_reference);
    return text + "]";
  }
};

}  // namespace

std::string print_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[32];
  const auto end = std::to_chars(std::begin(buffer), std::end(buffer), value);
  MLCC_CHECK(end.ec == std::errc{}, "a float does not fit its buffer");
  std::string text(buffer, end.ptr);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string print_argument(const Argument& argument,
                           const std::function<std::string(int)>& name_of_reference) {
  return std::visit(Printer{name_of_reference}, argument.value);
}

void for_each_reference(Argument& argument, const std::function<void(ArgRef&)>& change) {
  if (auto* reference = std::get_if<ArgRef>(&argument.value)) change(*reference);
  if (auto* list = std::get_if<ArgList>(&argument.value))
    for (Argument& element : *list) for_each_reference(element, change);
}

void for_each_reference(const Argument& argument, const std::function<void(const ArgRef&)>& visit) {
  if (const auto* reference = std::get_if<ArgRef>(&argument.value)) visit(*reference);
  if (const auto* list = std::get_if<ArgList>(&argument.value))
    for (const Argument& element : *list) for_each_reference(element, visit);
}

void for_each_size(const Argument& argument, const std::function<void(const SymExpr&)>& visit) {
  if (const auto* size = std::get_if<SymExpr>(&argument.value)) visit(*size);
  if (const auto* list = std::get_if<ArgList>(&argument.value))
    for (const Argument& element : *list) for_each_size(element, visit);
}

}  // namespace mlcc
