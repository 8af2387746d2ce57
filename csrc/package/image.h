// Kernels' objects as one piece of code that runs wherever it is mapped: relocated among
// themselves, with nothing left to fix up.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mlcc::package {

// A cache line, and the widest vector constant.
constexpr size_t kImageAlignment = 64;

struct Image {
  std::string bytes;
  // Of each object, of each symbol that was asked for: where it lies.
  std::vector<std::vector<int64_t>> addresses;
};

struct ObjectToLink {
  std::string_view bytes;            // relocatable ELF of x86-64 or AArch64
  std::vector<std::string> symbols;  // wanted
};

// Objects that are equal byte by byte lie in the image once. Throws UnsupportedError where one
// needs something outside of itself (a function of a library, data that is written to), Error where
// the bytes are no such object.
Image link_objects(std::span<const ObjectToLink> objects);

}  // namespace mlcc::package
