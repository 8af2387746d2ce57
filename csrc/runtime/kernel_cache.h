// Kernels by content key, in memory and behind that in the disk store. Nothing is compiled twice.
//
// On disk an object of one kernel stands under the kernel's key. Where a compiler takes several
// kernels at a time, the object stands as a *module* under a key of its own (hashed from those of
// its kernels), and under each kernel's key a small record that names it.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

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

struct WantedKernel {
  Hash128 key;
  KernelToLoad kernel;
};

// Runs task(0) .. task(count - 1), in any order, on any threads, and returns when all have ended.
// The tasks never throw.
using RunTasks = std::function<void(size_t count, const std::function<void(size_t)>& task)>;

// Where kernels that are not in memory come from.
struct KernelSource {
  const ObjectLoader& loader;
  Store* store = nullptr;
  // Object bytes that define these of the wanted kernels (by index), or why there are none. Runs
  // without a lock held.
  std::function<Result<std::string>(std::span<const size_t> which)> compile;
  int64_t max_batch = 1;         // kernels that one `compile` takes; above 1 there are modules
  RunTasks run_tasks = nullptr;  // null: one after the other
  int64_t num_threads = 1;       // that run_tasks has: batches are made small enough for all
};

// The record that names a kernel's module.
struct ModuleReference {
  Hash128 module;
  int64_t num_kernels;  // in the module
};
std::string encode_module_reference(const ModuleReference& reference);
std::optional<ModuleReference> decode_module_reference(std::string_view bytes);

// The object of a kernel that stands there by itself.
std::optional<std::string> stored_object(Store& store, const Hash128& key);

class KernelCache {
 public:
  KernelCache() = default;
  KernelCache(const KernelCache&) = delete;
  KernelCache& operator=(const KernelCache&) = delete;

  // The kernels of these keys: from memory, else from the store, else compiled, loaded and put into
  // both. Of several threads that miss the same key one compiles and the others wait; no thread
  // waits while another could wait for it. What `compile` refuses or throws is not kept; a waiting
  // thread then tries by itself. Throws what the first failing task threw, when all have ended.
  std::vector<Result<FoundKernel>> find_or_compile(std::span<const WantedKernel> wanted,
                                                   const KernelSource& source);

  // The same for one kernel.
  using Compile = std::function<Result<std::string>()>;
  Result<FoundKernel> find_or_compile(const Hash128& key, const std::string& name, int num_phases,
                                      const ObjectLoader& loader, Store* store,
                                      const Compile& compile);

  KernelCacheInfo info() const;
  void clear();  // kernels that executables hold stay callable

 private:
  class Claim;
  class Search;
  struct Entry {
    KernelPtr kernel;  // null while a thread compiles it
    int64_t bytes = 0;
  };
  struct Module {
    std::mutex mutex;  // held while one thread loads it
    std::weak_ptr<const LoadedObject> object;
    int64_t bytes = 0;  // of the object
  };

  mutable std::mutex mutex_;
  std::condition_variable settled_;  // some entry got its kernel or was given up
  std::unordered_map<Hash128, Entry> entries_;
  std::unordered_map<Hash128, std::shared_ptr<Module>> modules_;
  KernelCacheInfo counters_;
};

}  // namespace mlcc::runtime
