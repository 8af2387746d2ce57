#include "runtime/kernel_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/host_kernel.h"
#include "support/error.h"

namespace mlcc::runtime {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

int64_t do_nothing(const KernelArgs*, int64_t, int64_t) { return 0; }

// "Loads" any bytes but "bad".
class FakeObject : public LoadedObject, public std::enable_shared_from_this<FakeObject> {
 public:
  explicit FakeObject(std::string bytes) : bytes_(std::move(bytes)) {}
  KernelPtr kernel(const KernelToLoad& wanted) const override {
    return std::make_shared<HostKernel>(
        wanted.name + ":" + bytes_,
        std::vector<PhaseFunction>(static_cast<size_t>(wanted.num_phases), do_nothing),
        std::const_pointer_cast<FakeObject>(shared_from_this()));
  }

 private:
  const std::string bytes_;
};

class FakeLoader : public ObjectLoader {
 public:
  std::shared_ptr<const LoadedObject> open(std::string bytes) const override {
    ++loads;
    if (bytes == "bad") throw Error("not an object");
    return std::make_shared<FakeObject>(std::move(bytes));
  }
  mutable std::atomic<int> loads{0};
};

const Hash128 kKey = hash_bytes("key");

class KernelCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mlcc-cache-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { fs::remove_all(folder_); }

  FoundKernel find(KernelCache& cache, const Hash128& key, Store* store = nullptr) {
    const auto compile = [this]() -> Result<std::string> {
      ++compiled_;
      return std::string("object");
    };
    return cache.find_or_compile(key, "k", 2, loader_, store, compile).value();
  }

  fs::path folder_;
  FakeLoader loader_;
  std::atomic<int> compiled_{0};
};

TEST_F(KernelCacheTest, CompilesOnceAndCounts) {
  KernelCache cache;
  const FoundKernel first = find(cache, kKey);
  EXPECT_EQ(first.origin, KernelOrigin::kCompiled);
  EXPECT_EQ(first.kernel->name(), "k:object");
  EXPECT_EQ(first.kernel->num_phases(), 2);
  const FoundKernel second = find(cache, kKey);
  EXPECT_EQ(second.origin, KernelOrigin::kMemory);
  EXPECT_EQ(second.kernel, first.kernel);
  find(cache, hash_bytes("other"));
  const KernelCacheInfo info = cache.info();
  EXPECT_EQ(info.hits, 1);
  EXPECT_EQ(info.misses, 2);
  EXPECT_EQ(info.entries, 2);
  EXPECT_EQ(info.bytes, 12);
  EXPECT_EQ(compiled_, 2);
}

TEST_F(KernelCacheTest, ASecondCacheFindsTheObjectOnDisk) {
  Store store(folder_, 1 << 20);
  KernelCache first, second;
  find(first, kKey, &store);
  EXPECT_EQ(find(second, kKey, &store).origin, KernelOrigin::kDisk);
  EXPECT_EQ(find(second, kKey, &store).origin, KernelOrigin::kMemory);
  EXPECT_EQ(compiled_, 1);
  EXPECT_EQ(second.info().disk_hits, 1);
  EXPECT_EQ(second.info().misses, 0);
}

TEST_F(KernelCacheTest, AnObjectFromDiskThatDoesNotLoadIsCompiledAgain) {
  Store store(folder_, 1 << 20);
  store.put("kernel", kKey, "bad");
  KernelCache cache;
  EXPECT_EQ(find(cache, kKey, &store).origin, KernelOrigin::kCompiled);
  EXPECT_EQ(store.get("kernel", kKey), "object");
}

TEST_F(KernelCacheTest, ClearKeepsKernelsThatAreHeld) {
  KernelCache cache;
  const FoundKernel held = find(cache, kKey);
  cache.clear();
  EXPECT_EQ(cache.info().entries, 0);
  EXPECT_EQ(host_phases(*held.kernel)[0](nullptr, 0, 0), 0);
  EXPECT_EQ(find(cache, kKey).origin, KernelOrigin::kCompiled);
}

TEST_F(KernelCacheTest, RefusalsAndFailuresAreNotKept) {
  KernelCache cache;
  const auto refuse = []() -> Result<std::string> { return unsupported("no such op"); };
  const auto fail = []() -> Result<std::string> { throw std::runtime_error("broken"); };
  EXPECT_EQ(cache.find_or_compile(kKey, "k", 1, loader_, nullptr, refuse).reason(), "no such op");
  EXPECT_THROW((void)cache.find_or_compile(kKey, "k", 1, loader_, nullptr, fail),
               std::runtime_error);
  EXPECT_EQ(cache.info().entries, 0);
  EXPECT_EQ(find(cache, kKey).origin, KernelOrigin::kCompiled);
}

TEST_F(KernelCacheTest, ThreadsThatMissTheSameKeyCompileOnce) {
  KernelCache cache;
  std::atomic<int> compiled{0};
  const auto compile = [&]() -> Result<std::string> {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    ++compiled;
    return std::string("object");
  };
  std::vector<std::thread> threads;
  std::vector<KernelPtr> kernels(8);
  for (size_t t = 0; t < kernels.size(); ++t)
    threads.emplace_back([&, t] {
      kernels[t] = cache.find_or_compile(kKey, "k", 1, loader_, nullptr, compile).value().kernel;
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(compiled, 1);
  EXPECT_EQ(loader_.loads, 1);
  for (const KernelPtr& kernel : kernels) EXPECT_EQ(kernel, kernels[0]);
  EXPECT_EQ(cache.info().hits, 7);
  EXPECT_EQ(cache.info().misses, 1);
}

// Through memory and the store, while others clear both. Who holds a kernel can call it.
TEST_F(KernelCacheTest, ThreadsCompileLookUpRunAndClearAtOnce) {
  Store store(folder_, 1 << 20);
  KernelCache cache;
  const auto work = [&](int thread) {
    for (int round = 0; round < 20; ++round) {
      const FoundKernel found = find(cache, hash_bytes(std::to_string(round % 5)), &store);
      EXPECT_EQ(host_phases(*found.kernel)[0](nullptr, 0, 0), 0);
      if (thread % 4 == 0) cache.clear();
      if (thread % 8 == 1) store.clear();
      EXPECT_LE(cache.info().entries, 5);
      EXPECT_LE(store.info().entries, 5);
    }
  };
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 16; ++thread) threads.emplace_back(work, thread);
  for (std::thread& thread : threads) thread.join();
  const KernelCacheInfo info = cache.info();
  EXPECT_EQ(info.hits + info.disk_hits + info.misses, 16 * 20);
  EXPECT_EQ(info.misses, compiled_);
}

TEST_F(KernelCacheTest, AWaitingThreadTriesByItselfWhenTheFirstFails) {
  KernelCache cache;
  std::atomic<int> tries{0};
  const auto compile = [&]() -> Result<std::string> {
    const bool is_first = tries++ == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    if (is_first) throw std::runtime_error("broken");
    return std::string("object");
  };
  std::atomic<int> failures{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&] {
      try {
        EXPECT_NE(cache.find_or_compile(kKey, "k", 1, loader_, nullptr, compile).value().kernel,
                  nullptr);
      } catch (const std::runtime_error&) {
        ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 1);
  EXPECT_EQ(tries, 2);
}

// ---- Batches ------------------------------------------------------------------------------------

// A "compiler" whose modules are the names of their kernels.
class KernelBatchTest : public KernelCacheTest {
 protected:
  std::vector<WantedKernel> wanted(int begin, int end) {
    std::vector<WantedKernel> list;
    for (int i = begin; i < end; ++i) {
      const std::string name = "k" + std::to_string(i);
      list.push_back({hash_bytes(name), {.name = name, .num_phases = 1}});
    }
    return list;
  }

  std::vector<Result<FoundKernel>> find_all(KernelCache& cache,
                                            const std::vector<WantedKernel>& list, Store* store,
                                            int64_t threads = 1, int64_t max_batch = 4) {
    const auto compile = [&](std::span<const size_t> which) -> Result<std::string> {
      const std::lock_guard lock(mutex_);
      batches_.push_back(which.size());
      std::string names;
      for (const size_t i : which) {
        if (list[i].kernel.name == refused_) return unsupported("no code for ", refused_);
        names += list[i].kernel.name + " ";
      }
      return names;
    };
    const RunTasks run = [](size_t count, const std::function<void(size_t)>& task) {
      std::vector<std::thread> pool;
      for (size_t i = 0; i < count; ++i) pool.emplace_back(task, i);
      for (std::thread& thread : pool) thread.join();
    };
    return cache.find_or_compile(list, {.loader = loader_,
                                        .store = store,
                                        .compile = compile,
                                        .max_batch = max_batch,
                                        .run_tasks = run,
                                        .num_threads = threads});
  }

  static std::vector<KernelOrigin> origins(const std::vector<Result<FoundKernel>>& found) {
    std::vector<KernelOrigin> list;
    for (const Result<FoundKernel>& result : found) list.push_back(result->origin);
    return list;
  }

  std::mutex mutex_;
  std::vector<size_t> batches_;
  std::string refused_;
};

TEST_F(KernelBatchTest, CompilesWhatIsMissingInEvenBatches) {
  KernelCache cache;
  const auto found = find_all(cache, wanted(0, 9), nullptr);
  EXPECT_THAT(batches_, ::testing::UnorderedElementsAre(3, 3, 3));
  EXPECT_EQ(loader_.loads, 3);
  EXPECT_EQ(found[7]->kernel->name(), "k7:k6 k7 k8 ");
  EXPECT_EQ(cache.info().misses, 9);
  EXPECT_EQ(cache.info().entries, 9);

  batches_.clear();
  find_all(cache, wanted(5, 11), nullptr);  // two are new
  EXPECT_THAT(batches_, ::testing::ElementsAre(2));
  EXPECT_EQ(cache.info().hits, 4);

  batches_.clear();
  find_all(cache, wanted(20, 28), nullptr, 4);  // work for every thread
  EXPECT_THAT(batches_, ::testing::ElementsAre(2, 2, 2, 2));
}

TEST_F(KernelBatchTest, ASecondProcessLoadsEachModuleOnce) {
  Store store(folder_, 1 << 20);
  KernelCache first, second;
  find_all(first, wanted(0, 8), &store, 2);
  batches_.clear();
  loader_.loads = 0;
  const auto found = find_all(second, wanted(0, 8), &store, 2);
  EXPECT_THAT(batches_, ::testing::IsEmpty());
  EXPECT_EQ(loader_.loads, 2);
  EXPECT_THAT(origins(found), ::testing::Each(KernelOrigin::kDisk));
  EXPECT_EQ(second.info().disk_hits, 8);
  EXPECT_EQ(second.info().misses, 0);
  EXPECT_EQ(second.info().bytes, first.info().bytes);
  EXPECT_GT(second.info().bytes, 0);
}

TEST_F(KernelBatchTest, ABrokenOrMissingModuleOrRecordIsAMiss) {
  Store store(folder_, 1 << 20);
  const std::vector<WantedKernel> list = wanted(0, 4);
  KernelCache first;
  find_all(first, list, &store);
  const auto reference = decode_module_reference(*store.get("kernel", list[0].key));
  ASSERT_TRUE(reference);
  EXPECT_EQ(reference->num_kernels, 4);
  const auto origins_now = [&] {
    KernelCache cache;
    return origins(find_all(cache, list, &store));
  };
  EXPECT_THAT(origins_now(), ::testing::Each(KernelOrigin::kDisk));

  store.put("module", reference->module, "bad");
  EXPECT_THAT(origins_now(), ::testing::Each(KernelOrigin::kCompiled));
  EXPECT_THAT(origins_now(), ::testing::Each(KernelOrigin::kDisk));  // it was put there again

  store.put("kernel", list[1].key, "no record");
  EXPECT_THAT(origins_now(), ::testing::ElementsAre(KernelOrigin::kDisk, KernelOrigin::kCompiled,
                                                    KernelOrigin::kDisk, KernelOrigin::kDisk));

  store.put("kernel", list[2].key, encode_module_reference({hash_bytes("not there"), 4}));
  EXPECT_EQ(origins_now()[2], KernelOrigin::kCompiled);
}

TEST_F(KernelBatchTest, RecordsOfModulesAreReadWithCare) {
  const std::string record = encode_module_reference({{1, 2}, 3});
  const auto read = decode_module_reference(record);
  ASSERT_TRUE(read);
  EXPECT_EQ(read->module, (Hash128{1, 2}));
  EXPECT_EQ(read->num_kernels, 3);
  for (size_t size = 0; size < record.size(); ++size)
    EXPECT_FALSE(decode_module_reference(record.substr(0, size)));
  EXPECT_FALSE(decode_module_reference(record + "x"));
  EXPECT_FALSE(decode_module_reference(encode_module_reference({{1, 2}, 0})));
}

TEST_F(KernelBatchTest, TheSameKernelTwiceIsCompiledOnce) {
  KernelCache cache;
  std::vector<WantedKernel> list = wanted(0, 2);
  list.push_back(list[0]);
  const auto found = find_all(cache, list, nullptr);
  EXPECT_EQ(found[0]->kernel, found[2]->kernel);
  EXPECT_EQ(found[2]->origin, KernelOrigin::kMemory);
  EXPECT_THAT(batches_, ::testing::ElementsAre(2));
}

TEST_F(KernelBatchTest, ARefusedBatchIsNotKept) {
  KernelCache cache;
  refused_ = "k1";
  const auto found = find_all(cache, wanted(0, 6), nullptr);
  EXPECT_EQ(found[1].reason(), "no code for k1");
  EXPECT_TRUE(found[5]);
  refused_.clear();
  EXPECT_TRUE(find_all(cache, wanted(0, 6), nullptr)[1]);
}

TEST_F(KernelBatchTest, ThreadsWithOverlappingBatchesCompileEachKernelOnce) {
  for (int round = 0; round < 20; ++round) {
    KernelCache cache;
    batches_.clear();
    std::vector<std::thread> threads;
    for (int t = 0; t < 6; ++t)
      threads.emplace_back([&, t] {
        std::vector<WantedKernel> list = wanted(t * 3, t * 3 + 12);
        if (t % 2 == 1) std::reverse(list.begin(), list.end());
        for (const Result<FoundKernel>& found : find_all(cache, list, nullptr, 2))
          EXPECT_TRUE(found);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(std::accumulate(batches_.begin(), batches_.end(), size_t{0}), 27u);
    EXPECT_EQ(cache.info().misses, 27);
    EXPECT_EQ(cache.info().hits, 6 * 12 - 27);
  }
}

}  // namespace
}  // namespace mlcc::runtime
