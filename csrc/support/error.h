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
#include <cstdint>
#include <initializer_list>
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

// A part of a message: text, or a number that is printed as a stream prints it.
class Part {
 public:
  Part(std::string_view text) : text_(text) {}    // NOLINT(google-explicit-constructor)
  Part(const std::string& text) : text_(text) {}  // NOLINT(google-explicit-constructor)
  template <std::signed_integral T>
  Part(T number) : kind_(Kind::kSigned), signed_(number) {}  // NOLINT(google-explicit-constructor)
  template <std::unsigned_integral T>
  Part(T number)  // NOLINT(google-explicit-constructor)
      : kind_(Kind::kUnsigned), unsigned_(number) {}
  Part(char letter) : kind_(Kind::kChar), char_(letter) {}  // NOLINT(google-explicit-constructor)
  Part(double number)
      : kind_(Kind::kDouble), double_(number) {}  // NOLINT(google-explicit-constructor)
  void append_to(std::string& message) const;

 private:
  enum class Kind : uint8_t { kText, kSigned, kUnsigned, kChar, kDouble };
  Kind kind_ = Kind::kText;
  union {
    std::string_view text_;
    int64_t signed_;
    uint64_t unsigned_;
    char char_;
    double double_;
  };
};

// Streams bring locales along, three times the size of a runtime that is deployed: only types that
// have no other form use one. A text of its own lives to the end of the message.
template <typename T>
auto part_of(const T& value) {
  if constexpr (std::is_convertible_v<const T&, std::string_view>) {
    return Part(std::string_view(value));
  } else if constexpr (std::is_arithmetic_v<T>) {
    return Part(value);
  } else if constexpr (requires {
                         { value.str() } -> std::convertible_to<std::string>;
                       }) {
    return std::string(value.str());
  } else {
    std::ostringstream stream;
    stream << value;
    return stream.str();
  }
}

std::string join_parts(std::initializer_list<Part> parts);

template <typename... Parts>
std::string join(const Parts&... parts) {
  return join_parts({Part(part_of(parts))...});
}

// Out of line, so that a check takes little code where it stands.
[[noreturn]] void throw_error(std::initializer_list<Part> parts);
[[noreturn]] void throw_internal(const char* file, int line, std::initializer_list<Part> parts);

template <typename... Parts>
[[noreturn]] void fail(const Parts&... parts) {
  throw_error({Part(part_of(parts))...});
}

template <typename... Parts>
[[noreturn]] void fail_internal(const char* file, int line, const Parts&... parts) {
  throw_internal(file, line, {Part(part_of(parts))...});
}

}  // namespace detail
}  // namespace mlcc

#define MLCC_USER_CHECK(condition, ...)                                                            \
  do {                                                                                             \
    if (!(condition)) ::mlcc::detail::fail(__VA_ARGS__);                                           \
  } while (false)

#define MLCC_CHECK(condition, ...)                                                                 \
  do {                                                                                             \
    if (!(condition)) ::mlcc::detail::fail_internal(__FILE__, __LINE__, __VA_ARGS__);              \
  } while (false)

#define MLCC_UNREACHABLE(...) ::mlcc::detail::fail_internal(__FILE__, __LINE__, __VA_ARGS__)
