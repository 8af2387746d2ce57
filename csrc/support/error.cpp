#include "support/error.h"

#include <array>
#include <cstdio>

namespace mlcc::detail {

void Part::append_to(std::string& message) const {
  switch (kind_) {
  case Kind::kText: message.append(text_); return;
  case Kind::kSigned: message.append(std::to_string(signed_)); return;
  case Kind::kUnsigned: message.append(std::to_string(unsigned_)); return;
  case Kind::kChar: message += char_; return;
  case Kind::kDouble: {
    std::array<char, 32> buffer;
    std::snprintf(buffer.data(), buffer.size(), "%g", double_);
    message.append(buffer.data());
    return;
  }
  }
}

std::string join_parts(std::initializer_list<Part> parts) {
  std::string message;
  for (const Part& part : parts) part.append_to(message);
  return message;
}

void throw_error(std::initializer_list<Part> parts) { throw Error(join_parts(parts)); }

void throw_internal(const char* file, int line, std::initializer_list<Part> parts) {
  throw InternalError(join(join_parts(parts), " [", file, ":", line, "]"));
}

}  // namespace mlcc::detail
