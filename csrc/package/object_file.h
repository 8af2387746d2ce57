// A relocatable ELF file of code and of weights beside it, for a linker.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "package/image.h"

namespace mlcc::package {

struct ObjectFile {
  std::string architecture;  // "x86_64", "aarch64"
  Image code;
  std::string function;  // the one that is called
  int64_t place = 0;     // of it, in the code
  std::string weights;
  std::string weights_name;  // that open places of the code name; empty: there are none
};

// UnsupportedError for other architectures.
std::string encode_object(const ObjectFile& file);

}  // namespace mlcc::package
