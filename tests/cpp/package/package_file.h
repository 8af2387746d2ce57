// For packages made by hand: a kernel in machine code, and a file's bytes.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "package/writer.h"

namespace mlcc::package {

#if defined(__x86_64__)
inline constexpr const char* kArchitecture = "x86_64";
// Copies the f32 at buffers[0] to buffers[1], returns sizes[0]: the code of a failed check unless
// it is 0.
//   mov rax, [rdi]; mov rcx, [rax]; mov rdx, [rax+8]; mov ecx, [rcx]; mov [rdx], ecx
//   mov rax, [rdi+8]; mov rax, [rax]; ret
inline constexpr std::string_view kCode("\x48\x8b\x07\x48\x8b\x08\x48\x8b\x50\x08\x8b\x09\x89\x0a"
                                        "\x48\x8b\x47\x08\x48\x8b\x00\xc3",
                                        22);
#else
inline constexpr const char* kArchitecture = "aarch64";
//   ldr x1, [x0]; ldp x2, x3, [x1]; ldr w2, [x2]; str w2, [x3]; ldr x1, [x0, 8]; ldr x0, [x1]; ret
inline constexpr std::string_view
    kCode("\x01\x00\x40\xf9\x22\x0c\x40\xa9\x42\x00\x40\xb9\x62\x00\x00\xb9"
          "\x01\x04\x40\xf9\x20\x00\x40\xf9\xc0\x03\x5f\xd6",
          28);
#endif

inline std::string bytes_of(const PackageFile& file) {
  const auto path = std::filesystem::temp_directory_path() /
                    ("package_test." + std::to_string(::getpid()) + ".mlcc");
  write_package(path, file);
  std::ifstream stream(path, std::ios::binary);
  std::stringstream bytes;
  bytes << stream.rdbuf();
  std::filesystem::remove(path);
  return bytes.str();
}

}  // namespace mlcc::package
