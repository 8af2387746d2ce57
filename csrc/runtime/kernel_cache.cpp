#include "runtime/kernel_cache.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <map>
#include <numeric>
#include <utility>

#include "support/logging.h"
#include "support/older_systems.h"

namespace mlcc::runtime {
namespace {

constexpr std::string_view kKind = "kernel";
constexpr std::string_view kModuleKind = "module";
constexpr std::string_view kReferenceMagic = "MLCCREF\n";

Hash128 module_key(std::span<const WantedKernel> wanted, std::span<const size_t> which) {
  FieldHasher hasher;
  hasher.add("module");
  for (const size_t i : which) hasher.add(wanted[i].key.hex());
  return hasher.finish();
}

// `missing` in parts of about equal size, small enough that every thread has one.
std::vector<std::span<const size_t>> split(std::span<const size_t> missing,
                                           const KernelSource& source) {
  const auto divide_up = [](size_t a, size_t b) { return (a + b - 1) / b; };
  const size_t threads = static_cast<size_t>(std::max<int64_t>(source.num_threads, 1));
  const size_t most = static_cast<size_t>(std::max<int64_t>(source.max_batch, 1));
  const size_t parts = std::max(divide_up(missing.size(), most), std::min(threads, missing.size()));
  std::vector<std::span<const size_t>> batches;
  for (size_t i = 0; i < parts; ++i) {
    const size_t begin = missing.size() * i / parts;
    const size_t end = missing.size() * (i + 1) / parts;
    batches.push_back(missing.subspan(begin, end - begin));
  }
  return batches;
}

}  // namespace

std::optional<std::string> stored_object(Store& store, const Hash128& key) {
  return store.get(kKind, key);
}

std::string encode_module_reference(const ModuleReference& reference) {
  const std::array<uint64_t, 3> numbers = {reference.module.low, reference.module.high,
                                           static_cast<uint64_t>(reference.num_kernels)};
  std::string bytes(kReferenceMagic);
  for (const uint64_t number : numbers)
    for (int shift = 0; shift < 64; shift += 8) bytes += static_cast<char>(number >> shift);
  return bytes;
}

std::optional<ModuleReference> decode_module_reference(std::string_view bytes) {
  std::array<uint64_t, 3> numbers{};
  if (!bytes.starts_with(kReferenceMagic)) return std::nullopt;
  bytes.remove_prefix(kReferenceMagic.size());
  if (bytes.size() != numbers.size() * sizeof(uint64_t)) return std::nullopt;
  for (size_t i = 0; i < bytes.size(); ++i)
    numbers[i / 8] |= uint64_t{static_cast<unsigned char>(bytes[i])} << (8 * (i % 8));
  const auto num_kernels = static_cast<int64_t>(numbers[2]);
  if (num_kernels <= 0) return std::nullopt;
  return ModuleReference{{numbers[0], numbers[1]}, num_kernels};
}

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

  void settle(const FoundKernel& found, int64_t bytes) {
    {
      const std::lock_guard lock(cache_.mutex_);
      cache_.entries_[key_] = {found.kernel, bytes};
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

// One call of find_or_compile.
class KernelCache::Search {
 public:
  Search(KernelCache& cache, std::span<const WantedKernel> wanted, const KernelSource& source)
      : cache_(cache), wanted_(wanted), source_(source), found_(wanted.size()) {}

  std::vector<Result<FoundKernel>> run() {
    std::vector<size_t> open(wanted_.size());
    std::iota(open.begin(), open.end(), size_t{0});
    for (;;) {
      const std::vector<size_t> others = take(open);
      load_claimed();
      compile_claimed();
      claims_.clear();
      if (others.empty()) break;
      wait_for_any(others);  // holds no claim
      open = others;
    }
    std::vector<Result<FoundKernel>> results;
    results.reserve(found_.size());
    for (std::optional<Result<FoundKernel>>& result : found_) results.push_back(std::move(*result));
    return results;
  }

 private:
  // Takes what is in memory and claims what is nobody's; returns what other threads compile.
  std::vector<size_t> take(const std::vector<size_t>& open) {
    std::vector<size_t> others;
    const std::lock_guard lock(cache_.mutex_);
    for (const size_t i : open) {
      const auto [it, is_new] = cache_.entries_.try_emplace(wanted_[i].key);
      if (is_new) {
        claims_.emplace(std::piecewise_construct, std::forward_as_tuple(i),
                        std::forward_as_tuple(cache_, wanted_[i].key));
      } else if (it->second.kernel != nullptr) {
        ++cache_.counters_.hits;
        found_[i] = FoundKernel{it->second.kernel, KernelOrigin::kMemory};
      } else {
        others.push_back(i);
      }
    }
    return others;
  }

  void wait_for_any(const std::vector<size_t>& others) {
    std::unique_lock lock(cache_.mutex_);
    wait_until_ready(cache_.settled_, lock, [&] {
      return std::any_of(others.begin(), others.end(), [&](size_t i) {
        const auto it = cache_.entries_.find(wanted_[i].key);
        return it == cache_.entries_.end() || it->second.kernel != nullptr;
      });
    });
  }

  std::vector<size_t> claimed() const {
    std::vector<size_t> indices;
    for (const auto& [i, claim] : claims_)
      if (!found_[i]) indices.push_back(i);
    return indices;
  }

  void load_claimed() {
    if (source_.store == nullptr) return;
    const std::vector<size_t> indices = claimed();
    run_tasks(indices.size(), [&](size_t task) { load(indices[task]); });
  }

  void compile_claimed() {
    const std::vector<size_t> missing = claimed();
    if (missing.empty()) return;
    const std::vector<std::span<const size_t>> batches = split(missing, source_);
    run_tasks(batches.size(), [&](size_t task) { compile(batches[task]); });
  }

  void run_tasks(size_t count, const std::function<void(size_t)>& task) {
    std::mutex mutex;
    std::exception_ptr failure;
    const auto guarded = [&](size_t i) {
      try {
        task(i);
      } catch (const std::exception&) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    };
    if (count > 1 && source_.run_tasks) {
      source_.run_tasks(count, guarded);
    } else {
      for (size_t i = 0; i < count; ++i) guarded(i);
    }
    if (failure) std::rethrow_exception(failure);
  }

  void settle(size_t i, FoundKernel found, int64_t bytes) {
    claims_.at(i).settle(found, bytes);
    found_[i] = std::move(found);
  }

  // From the store; what is broken there is a miss, with a log line.
  void load(size_t i) {
    const std::optional<std::string> bytes = source_.store->get(kKind, wanted_[i].key);
    if (!bytes) return;
    const KernelToLoad& wanted = wanted_[i].kernel;
    try {
      if (source_.max_batch <= 1) {
        const auto size = static_cast<int64_t>(bytes->size());
        settle(i, {source_.loader.open(*bytes)->kernel(wanted), KernelOrigin::kDisk}, size);
      } else {
        load_from_module(i, *bytes);
      }
    } catch (const Error& error) {
      log(LogChannel::kCache, "kernel ", wanted.name,
          " from disk cannot be loaded: ", error.what());
    }
  }

  void load_from_module(size_t i, std::string_view record) {
    const std::optional<ModuleReference> reference = decode_module_reference(record);
    MLCC_USER_CHECK(reference, "its record names no module");
    std::shared_ptr<Module> module;
    {
      const std::lock_guard lock(cache_.mutex_);
      std::shared_ptr<Module>& place = cache_.modules_[reference->module];
      if (place == nullptr) place = std::make_shared<Module>();
      module = place;
    }
    const std::lock_guard lock(module->mutex);
    std::shared_ptr<const LoadedObject> object = module->object.lock();
    if (object == nullptr) {
      std::optional<std::string> bytes = source_.store->get(kModuleKind, reference->module);
      MLCC_USER_CHECK(bytes, "its module ", reference->module.hex(), " is not there");
      module->bytes = static_cast<int64_t>(bytes->size());
      object = source_.loader.open(std::move(*bytes));
      module->object = object;
    }
    settle(i, {object->kernel(wanted_[i].kernel), KernelOrigin::kDisk},
           module->bytes / reference->num_kernels);
  }

  void compile(std::span<const size_t> which) {
    const Result<std::string> bytes = source_.compile(which);
    if (!bytes) {
      const std::lock_guard lock(cache_.mutex_);
      cache_.counters_.misses += static_cast<int64_t>(which.size());
      for (const size_t i : which) found_[i] = Unsupported{bytes.reason()};
      return;
    }
    const std::shared_ptr<const LoadedObject> object = source_.loader.open(*bytes);
    std::vector<KernelPtr> kernels;
    for (const size_t i : which) kernels.push_back(object->kernel(wanted_[i].kernel));
    put(which, *bytes, object);
    const auto count = static_cast<int64_t>(which.size());
    for (size_t k = 0; k < which.size(); ++k)
      settle(which[k], {kernels[k], KernelOrigin::kCompiled},
             static_cast<int64_t>(bytes->size()) / count);
  }

  void put(std::span<const size_t> which, const std::string& bytes,
           const std::shared_ptr<const LoadedObject>& object) {
    if (source_.max_batch <= 1) {
      if (source_.store != nullptr) source_.store->put(kKind, wanted_[which[0]].key, bytes);
      return;
    }
    const ModuleReference reference{module_key(wanted_, which), static_cast<int64_t>(which.size())};
    {
      auto module = std::make_shared<Module>();
      module->object = object;
      module->bytes = static_cast<int64_t>(bytes.size());
      const std::lock_guard lock(cache_.mutex_);
      cache_.modules_[reference.module] = std::move(module);
    }
    if (source_.store == nullptr) return;
    source_.store->put(kModuleKind, reference.module, bytes);
    for (const size_t i : which)
      source_.store->put(kKind, wanted_[i].key, encode_module_reference(reference));
  }

  KernelCache& cache_;
  const std::span<const WantedKernel> wanted_;
  const KernelSource& source_;
  std::vector<std::optional<Result<FoundKernel>>> found_;  // tasks write elements of their own
  std::map<size_t, Claim> claims_;
};

std::vector<Result<FoundKernel>> KernelCache::find_or_compile(std::span<const WantedKernel> wanted,
                                                              const KernelSource& source) {
  return Search(*this, wanted, source).run();
}

Result<FoundKernel> KernelCache::find_or_compile(const Hash128& key, const std::string& name,
                                                 int num_phases, const ObjectLoader& loader,
                                                 Store* store, const Compile& compile) {
  const std::array wanted = {WantedKernel{key, {.name = name, .num_phases = num_phases}}};
  const KernelSource source{.loader = loader,
                            .store = store,
                            .compile = [&](std::span<const size_t>) { return compile(); }};
  return find_or_compile(wanted, source)[0];
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
  std::erase_if(modules_, [](const auto& item) {
    return item.second.use_count() == 1 && item.second->object.expired();
  });
}

}  // namespace mlcc::runtime
