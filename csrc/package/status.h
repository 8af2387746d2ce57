// Errors of the runtime, with the number that C callers see.
#pragma once

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

}  // namespace mlcc::package

#define MLCC_STATUS_CHECK(condition, status, ...)                                                  \
  do {                                                                                             \
    if (!(condition))                                                                              \
      throw ::mlcc::package::StatusError(status, ::mlcc::detail::join(__VA_ARGS__));               \
  } while (false)
