// Result<T>: a value, or the reason why something is not supported. Never used for bugs or user
// errors.
#pragma once

#include <string>
#include <utility>
#include <variant>

#include "support/error.h"

namespace mlcc {

// Why an expected answer is "no". The text goes to the log as it stands.
struct Unsupported {
  std::string reason;
};

template <typename... Parts>
Unsupported unsupported(const Parts&... parts) {
  return Unsupported{detail::join(parts...)};
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::move(value)) {}        // NOLINT(google-explicit-constructor)
  Result(Unsupported why) : state_(std::move(why)) {}  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return std::holds_alternative<T>(state_); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(value()); }
  const T* operator->() const { return &value(); }
  const std::string& reason() const { return std::get<Unsupported>(state_).reason; }

  const T& value() const {
    MLCC_CHECK(*this, "result read though unsupported: ", reason());
    return std::get<T>(state_);
  }
  T& value() {
    MLCC_CHECK(*this, "result read though unsupported: ", reason());
    return std::get<T>(state_);
  }

 private:
  std::variant<T, Unsupported> state_;
};

}  // namespace mlcc
