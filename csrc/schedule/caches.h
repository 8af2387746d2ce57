// The caches of the CPU that code is made for.
#pragma once

#include <cstdint>
#include <string_view>

namespace mlcc::schedule {

struct Caches {
  int64_t second_level_bytes = 0;  // of a core
  int64_t last_level_bytes = 0;    // that a core may count on; 0: not known
};

// Of the CPU that this process runs on, as the system tells; 1 MiB and 0 where it does not.
const Caches& host_caches();

// Of a CPU by LLVM's name, from a table (cpus.def). Of one that is not in it those of a usual CPU
// with vectors of so many bits.
Caches caches_of(std::string_view cpu, int64_t vector_bits);

}  // namespace mlcc::schedule
