#include "support/error.h"

namespace mlcc::detail {

void throw_internal(const char* file, int line, const std::string& message) {
  throw InternalError(join(message, " [", file, ":", line, "]"));
}

}  // namespace mlcc::detail
