// The three kinds of failure in mlcc and how each is raised.
//
//   not supported  an expected answer: return Result<T> (result.h) with a reason
//   user error     MLCC_USER_CHECK throws mlcc::Error; what a device does wrong is told the same
//   way bug            MLCC_CHECK / MLCC_UNREACHABLE throw mlcc::InternalError with file and line
//
// Message arguments are evaluated only on failure. Messages are lower case, without a
// final stop, the entity first, then what was found and what was expected.
#pragma once

#include <concepts>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>

namespace mlcc {

// A mistake in what the user gave us.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Code that is right cannot be loaded where it should run: the driver refuses it, or memory is
// short. Whoever compiles may do without it.
class LoadError : public Error {
 public:
  using Error::Error;
};

// What is asked for is right, but we cannot do it; something else can.
class UnsupportedError : public Error {
 public:
  using Error::Error;
};

// A mistake of ours. Never turned silently into a fallback.
class InternalError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

namespace detail {

// Stands in a message between what is wrong and the program in which it is: mlcc/_errors.py.
constexpr const char* kWhileCompiling = "\nwhile compiling\n";

std::string print_number(double value);  // as a stream prints it: six digits

// A part of a message, as a stream prints it. Streams themselves bring locales along, which are
// three times the size of a runtime: only types that have no other form use one.
template <typename Part>
std::string part_text(const Part& part) {
  if constexpr (std::is_convertible_v<const Part&, std::string_view>) {
    return std::string(std::string_view(part));
  } else if constexpr (std::is_same_v<Part, char>) {
    return {part};
  } else if constexpr (std::is_integral_v<Part>) {
    return std::to_string(part);
  } else if constexpr (std::is_floating_point_v<Part>) {
    return print_number(static_cast<double>(part));
  } else if constexpr (requires {
                         { part.str() } -> std::convertible_to<std::string>;
                       }) {
    return part.str();
  } else {
    std::ostringstream stream;
    stream << part;
    return stream.str();
  }
}

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::string text;
  (text.append(part_text(parts)), ...);
  return text;
}

[[noreturn]] void throw_internal(const char* file, int line, const std::string& message);

}  // namespace detail
}  // namespace mlcc

#define MLCC_USER_CHECK(condition, ...)                                                            \
  do {                                                                                             \
    if (!(condition)) throw ::mlcc::Error(::mlcc::detail::join(__VA_ARGS__));                      \
  } while (false)

#define MLCC_CHECK(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition))                                                                              \
      ::mlcc::detail::throw_internal(__FILE__, __LINE__, ::mlcc::detail::join(__VA_ARGS__));       \
  } while (false)

#define MLCC_UNREACHABLE(...)                                                                      \
  ::mlcc::detail::throw_internal(__FILE__, __LINE__, ::mlcc::detail::join(__VA_ARGS__))
