// The CPUs that a package has code for, and whether this one can run it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace mlcc::package {

struct Target {
  std::string architecture;           // "x86_64", "aarch64"
  std::string cpu;                    // LLVM's name, for people
  std::vector<std::string> features;  // that code for it needs, by LLVM's names
};

std::string encode_targets(const std::vector<Target>& targets);
std::vector<Target> decode_targets(std::string_view bytes);  // Error where they are none

// What this machine lacks of what the code needs, the architecture or a feature; "" where it has
// all. A feature that is not known here counts as missing.
std::string missing_here(const Target& target);

}  // namespace mlcc::package
