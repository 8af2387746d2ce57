#include "support/error.h"

#include <array>
#include <cstdio>

namespace mlcc::detail {

std::string print_number(double value) {
  std::array<char, 32> buffer;
  std::snprintf(buffer.data(), buffer.size(), "%g", value);
  return buffer.data();
}

void throw_internal(const char* file, int line, const std::string& message) {
  throw InternalError(join(message, " [", file, ":", line, "]"));
}

}  // namespace mlcc::detail
