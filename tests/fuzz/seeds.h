// The command line of every fuzzer: fuzz_x [--seed=1] [--runs=1000].
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

namespace mlcc::fuzz {

inline int64_t option(std::string_view argument, std::string_view name, int64_t otherwise) {
  return argument.starts_with(name) ? std::atoll(argument.data() + name.size()) : otherwise;
}

// Calls check(seed) for each seed; 1, with the seed on stderr, at the first that throws.
template <typename Check>
int run_seeds(int argc, char** argv, const Check& check) {
  int64_t seed = 1;
  int64_t runs = 1000;
  for (int i = 1; i < argc; ++i) {
    seed = option(argv[i], "--seed=", seed);
    runs = option(argv[i], "--runs=", runs);
  }
  for (int64_t i = 0; i < runs; ++i) {
    const auto current = static_cast<uint64_t>(seed + i);
    try {
      check(current);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "seed %llu: %s\n", static_cast<unsigned long long>(current),
                   error.what());
      return 1;
    }
  }
  return 0;
}

}  // namespace mlcc::fuzz
