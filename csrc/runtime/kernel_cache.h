// Kernels by content key, in memory and behind that in the disk store. Nothing is compiled twice.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "runtime/kernel.h"
#include "runtime/object_loader.h"
#include "runtime/store.h"
#include "support/hash.h"
#include "support/result.h"

namespace mlcc::runtime {

enum class KernelOrigin : uint8_t { kMemory, kDisk, kCompiled };

struct FoundKernel {
  KernelPtr kernel;
  KernelOrigin origin;
};

struct KernelCacheInfo {
  int64_t hits = 0;  // in memory
  int64_t disk_hits = 0;
  int64_t misses = 0;  // compiled, or refused by the compiler
  int64_t entries = 0;
  int64_t bytes = 0;  // of the objects behind the entries
};

class KernelCache {
 public:
  KernelCache() = default;
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // Object bytes of a kernel, or why there are none. Runs without a lock held.
  using Compile = std::function<Result<std::string>()>;

  // The kernel of this key: from memory, else from `store` (may be null), else compiled, loaded and
  // put into both. Of several threads that miss the same key one compiles and the others wait. What
  // `compile` refuses or throws is not kept; a waiting thread then tries by itself.
  Result<FoundKernel> find_or_compile(const Hash128& key, const std::string& name, int num_phases,
                                      const ObjectLoader& loader, Store* store,
                                      const Compile& compile);

  KernelCacheInfo info() const;
  void clear();  // kernels that executables hold stay callable

 private:
  class Claim;
  Result<FoundKernel> load_or_compile(const Hash128& key, const std::string& name, int num_phases,
                                      const ObjectLoader& loader, Store* store,
                                      const Compile& compile);
  struct Entry {
    KernelPtr kernel;  // null while a thread compiles it
    int64_t bytes = 0;
  };

  mutable std::mutex mutex_;
  std::condition_variable settled_;  // some entry got its kernel or was given up
  std::unordered_map<Hash128, Entry> entries_;
  KernelCacheInfo counters_;
};

}  // namespace mlcc::runtime
