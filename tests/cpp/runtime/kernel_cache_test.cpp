#include "runtime/kernel_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
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
class FakeObject : public LoadedObject {
 public:
  explicit FakeObject(std::string bytes) : bytes_(std::move(bytes)) {}
  KernelPtr kernel(const KernelToLoad& wanted) const override {
    return std::make_shared<HostKernel>(
        wanted.name + ":" + bytes_,
        std::vector<PhaseFunction>(static_cast<size_t>(wanted.num_phases), do_nothing));
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

}  // namespace
}  // namespace mlcc::runtime
