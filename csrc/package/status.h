// Errors of the runtime, with the number that C callers see.
#pragma once

#include <initializer_list>

#include "package/mlcc_runtime.h"
#include "support/error.h"

namespace mlcc::package {

class StatusError : public Error {
 public:
  StatusError(mlcc_status status, const std::string& text) : Error(text), status_(status) {}
  mlcc_status status() const { return status_; }

 private:
  mlcc_status status_;
};

// Out of line, so that a check takes little code where it stands.
[[noreturn]] void throw_status(mlcc_status status, std::initializer_list<detail::Part> text);

template <typename... Parts>
[[noreturn]] void fail_with(mlcc_status status, const Parts&... parts) {
  throw_status(status, {detail::Part(detail::part_of(parts))...});
}

}  // namespace mlcc::package

#define MLCC_STATUS_CHECK(condition, status, ...)                                                  \
  do {                                                                                             \
    if (!(condition)) ::mlcc::package::fail_with(status, __VA_ARGS__);                             \
  } while (false)
