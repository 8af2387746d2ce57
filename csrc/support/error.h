// The three kinds of failure in mlcc and how each is raised.
//
//   not supported  an expected answer: return Result<T> (result.h) with a reason
//   user error     MLCC_USER_CHECK throws mlcc::Error; what a device does wrong is told the same
//   way bug            MLCC_CHECK / MLCC_UNREACHABLE throw mlcc::InternalError with file and line
//
// Message arguments are streamed and evaluated only on failure. Messages are lower case, without a
// final stop, the entity first, then what was found and what was expected.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

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

template <typename... Parts>
std::string join(const Parts&... parts) {
  std::ostringstream stream;
  (stream << ... << parts);
  return stream.str();
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
