// The caches of the CPU that this process runs on.
#pragma once

#include <cstdint>

namespace mlcc::schedule {

// Bytes of a core's second-level cache; 1 MiB where the system does not tell.
int64_t second_level_cache_bytes();

// Bytes of the last-level cache that a core may count on; 0 where the system does not tell.
int64_t last_level_cache_bytes();

}  // namespace mlcc::schedule
