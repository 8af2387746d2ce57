// Kernels' objects as one piece of code that runs wherever it is mapped: relocated among
// themselves, with nothing left to fix up.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mlcc::package {

// A cache line, and the widest vector constant.
constexpr size_t kImageAlignment = 64;

// A place of code that whoever links it further fills in.
struct OpenPlace {
  int64_t offset;  // in the image
  uint32_t type;   // of ELF's relocations
  std::string symbol;
  int64_t addend;
};

struct Image {
  std::string bytes;
  // Of each object, of each symbol that was asked for: where it lies.
  std::vector<std::vector<int64_t>> addresses;
  std::vector<OpenPlace> open_places;
  int64_t scratch_bytes = 0;  // the most that a kernel uses of KernelArgs::scratch
  int64_t stack_bytes = 0;    // the most that a call of a kernel takes, with what it calls
};

struct ObjectToLink {
  std::string_view bytes;            // relocatable ELF of x86-64 or AArch64
  std::vector<std::string> symbols;  // wanted
};

// Objects that are equal byte by byte lie in the image once. Throws UnsupportedError where one
// needs something outside of itself (a function of a library, data that is written to), Error where
// the bytes are no such object.
Image link_objects(std::span<const ObjectToLink> objects);

// What an object may need beside what it defines.
struct Outside {
  std::map<std::string, int64_t, std::less<>> known;  // places in the image
  std::set<std::string, std::less<>> open;            // symbols that stay open
};

// Puts one more object behind what is there.
void link_behind(Image& image, const ObjectToLink& object, const Outside& outside);

}  // namespace mlcc::package
