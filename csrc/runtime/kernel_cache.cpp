#include "runtime/kernel_cache.h"

#include <optional>
#include <utility>

#include "support/logging.h"

namespace mlcc::runtime {
namespace {

constexpr std::string_view kKind = "kernel";

// Null, with a log line, if the loader refuses the bytes: a miss.
KernelPtr load_stored(const std::string& bytes, const std::string& name, int num_phases,
                      const ObjectLoader& loader) {
  try {
    return loader.load(bytes, name, num_phases);
  } catch (const Error& error) {
    log(LogChannel::kCache, "kernel ", name, " from disk cannot be loaded: ", error.what());
    return nullptr;
  }
}

}  // namespace

// This thread's promise to settle an entry; gives the entry up unless settled.
class KernelCache::Claim {
 public:
  Claim(KernelCache& cache, const Hash128& key) : cache_(cache), key_(key) {}
  Claim(const Claim&) = delete;
  Claim& operator=(const Claim&) = delete;
  ~Claim() {
    if (settled_) return;
    {
      const std::lock_guard lock(cache_.mutex_);
      const auto it = cache_.entries_.find(key_);
      if (it != cache_.entries_.end() && it->second.kernel == nullptr) cache_.entries_.erase(it);
    }
    cache_.settled_.notify_all();
  }

  void settle(const FoundKernel& found, size_t bytes) {
    {
      const std::lock_guard lock(cache_.mutex_);
      cache_.entries_[key_] = {found.kernel, static_cast<int64_t>(bytes)};
      ++(found.origin == KernelOrigin::kDisk ? cache_.counters_.disk_hits
                                             : cache_.counters_.misses);
      settled_ = true;
    }
    cache_.settled_.notify_all();
  }

 private:
  KernelCache& cache_;
  const Hash128 key_;
  bool settled_ = false;
};

Result<FoundKernel> KernelCache::find_or_compile(const Hash128& key, const std::string& name,
                                                 int num_phases, const ObjectLoader& loader,
                                                 Store* store, const Compile& compile) {
  {
    std::unique_lock lock(mutex_);
    for (;;) {
      const auto [it, is_new] = entries_.try_emplace(key);
      if (is_new) break;
      if (it->second.kernel != nullptr) {
        ++counters_.hits;
        return FoundKernel{it->second.kernel, KernelOrigin::kMemory};
      }
      settled_.wait(lock);
    }
  }
  return load_or_compile(key, name, num_phases, loader, store, compile);
}

Result<FoundKernel> KernelCache::load_or_compile(const Hash128& key, const std::string& name,
                                                 int num_phases, const ObjectLoader& loader,
                                                 Store* store, const Compile& compile) {
  Claim claim(*this, key);
  if (store != nullptr) {
    if (const std::optional<std::string> bytes = store->get(kKind, key)) {
      if (KernelPtr kernel = load_stored(*bytes, name, num_phases, loader)) {
        const FoundKernel found{std::move(kernel), KernelOrigin::kDisk};
        claim.settle(found, bytes->size());
        return found;
      }
    }
  }
  const Result<std::string> bytes = compile();
  if (!bytes) {
    const std::lock_guard lock(mutex_);
    ++counters_.misses;
    return Unsupported{bytes.reason()};
  }
  const FoundKernel found{loader.load(*bytes, name, num_phases), KernelOrigin::kCompiled};
  if (store != nullptr) store->put(kKind, key, *bytes);
  claim.settle(found, bytes->size());
  return found;
}

KernelCacheInfo KernelCache::info() const {
  const std::lock_guard lock(mutex_);
  KernelCacheInfo info = counters_;
  for (const auto& [key, entry] : entries_) {
    if (entry.kernel == nullptr) continue;
    ++info.entries;
    info.bytes += entry.bytes;
  }
  return info;
}

void KernelCache::clear() {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const auto& item) { return item.second.kernel != nullptr; });
}

}  // namespace mlcc::runtime
