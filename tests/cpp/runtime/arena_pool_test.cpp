#include "runtime/arena_pool.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>
#include <vector>

#include "runtime/arena_plan.h"

namespace mlcc::runtime {
namespace {

TEST(ArenaPool, GivesAlignedMemoryAndTakesItBack) {
  ArenaPool pool;
  char* first = nullptr;
  {
    const ArenaLease lease = pool.lease(1000);
    first = lease.data();
    ASSERT_NE(first, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(first) % kArenaAlignment, 0u);
    std::memset(lease.data(), 1, 1000);
    EXPECT_EQ(pool.leased_bytes(), 1000);
    EXPECT_EQ(pool.idle_bytes(), 0);
  }
  EXPECT_EQ(pool.leased_bytes(), 0);
  EXPECT_EQ(pool.idle_bytes(), 1000);
  EXPECT_EQ(pool.lease(800).data(), first);
  pool.trim();
  EXPECT_EQ(pool.idle_bytes(), 0);
}

TEST(ArenaPool, ZeroBytesAreNoBlock) {
  ArenaPool pool;
  EXPECT_EQ(pool.lease(0).data(), nullptr);
  EXPECT_EQ(pool.idle_bytes(), 0);
}

TEST(ArenaPool, DoesNotServeSmallRequestsFromLargeBlocks) {
  ArenaPool pool;
  pool.lease(1 << 19).end();
  const ArenaLease small = pool.lease(64);
  EXPECT_EQ(pool.leased_bytes(), 64);
  EXPECT_EQ(pool.idle_bytes(), 1 << 19);
}

TEST(ArenaPool, LargeBlocksComeFromThoseOfTensors) {
  BlockPool& blocks = BlockPool::process();
  blocks.trim();
  ArenaPool pool;
  ArenaLease lease = pool.lease(4 * kLargeBlockBytes);
  const char* const data = lease.data();
  EXPECT_EQ(pool.leased_bytes(), 4 * kLargeBlockBytes);
  lease.end();
  EXPECT_EQ(pool.leased_bytes(), 0);
  EXPECT_EQ(pool.idle_bytes(), 0);
  EXPECT_EQ(blocks.idle_bytes(), 4 * kLargeBlockBytes);
  const Block block = blocks.take(4 * kLargeBlockBytes, 3 * kLargeBlockBytes);
  EXPECT_EQ(block.data, data);
  blocks.give_back(block.data);
}

TEST(ArenaPool, TakesTheTightestBlock) {
  ArenaPool pool;
  {
    const ArenaLease large = pool.lease(4000);
    const ArenaLease middle = pool.lease(2000);
  }
  const ArenaLease lease = pool.lease(1500);
  EXPECT_EQ(pool.leased_bytes(), 2000);
}

TEST(ArenaPool, KeepsABoundedNumberOfIdleBlocks) {
  ArenaPool pool;
  {
    std::vector<ArenaLease> leases;
    for (int i = 0; i < 50; ++i) leases.push_back(pool.lease(100));
  }
  EXPECT_EQ(pool.leased_bytes(), 0);
  EXPECT_LE(pool.idle_bytes(), 8 * 100);
}

TEST(ArenaPool, ThreadsDoNotShareBlocks) {
  ArenaPool pool;
  const auto work = [&pool](char mark) {
    for (int i = 0; i < 2000; ++i) {
      const int64_t bytes = 64 * (1 + i % 7);
      const ArenaLease lease = pool.lease(bytes);
      std::memset(lease.data(), mark, static_cast<size_t>(bytes));
      for (int64_t b = 0; b < bytes; ++b) ASSERT_EQ(lease.data()[b], mark);
    }
  };
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) threads.emplace_back(work, static_cast<char>('a' + t));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(pool.leased_bytes(), 0);
}

}  // namespace
}  // namespace mlcc::runtime
